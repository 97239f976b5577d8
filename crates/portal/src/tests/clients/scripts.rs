//! Scripts are served to signed-in users and are never required.

use super::{Firm, new_client};
use axum::http::StatusCode;
use std::time::Duration;

#[tokio::test]
async fn scripts_are_cached_as_immutable() {
    let mut firm = Firm::open().await;
    let page = firm.ann.get("/clients").await;
    let mut found = 0;
    for rest in page.body.split("<script src=\"").skip(1) {
        let script = firm.ann.get(rest.split('"').next().unwrap()).await;
        assert_eq!(script.status, StatusCode::OK);
        assert_eq!(script.headers["content-type"], "text/javascript; charset=utf-8");
        assert!(script.headers["cache-control"].to_str().unwrap().contains("immutable"));
        found += 1;
    }
    assert!(found >= 2);
    let config =
        page.body.split("name=\"htmx-config\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    let config: serde_json::Value = serde_json::from_str(&config.replace("&#34;", "\"")).unwrap();
    assert_eq!((&config["allowEval"], &config["historyCacheSize"]), (&false.into(), &0.into()));
}

#[tokio::test]
async fn htmx_request_after_session_end_redirects_the_page() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    firm.portal.pass(Duration::from_secs(3_600));
    firm.ann.is_script = true;
    firm.ann.accept = "*/*";
    let reply = firm.ann.get(&format!("/clients/{client}?tab=letters")).await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
    let sign_in = format!("/auth/sign-in?return_to=%2Fclients%2F{client}%3Ftab%3Dletters");
    assert_eq!(reply.headers["hx-redirect"], sign_in.as_str());
    assert!(reply.location().is_empty(), "a script would follow it into another site's page");
}

#[tokio::test]
async fn forms_and_links_work_without_scripts() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    for path in ["/clients".to_owned(), "/clients/new".to_owned(), format!("/clients/{client}?open=note")] {
        let page = firm.ann.get(&path).await;
        for tag in page.body.split("<form").skip(1) {
            let tag = tag.split('>').next().unwrap();
            assert!(tag.contains(" action=\"/"), "{tag}");
        }
        for tag in page.body.split("<a ").skip(1) {
            let tag = tag.split('>').next().unwrap();
            assert!(tag.contains("href=\""), "{tag}");
        }
        let buttons = page.body.matches("type=\"button\"").count();
        assert_eq!(buttons, 1, "only the switch of the keys, which is not shown without a script");
    }
}
