//! Rules for all pages.

use super::TestPortal;
use super::browser::claims;
use super::firm::manage;
use axum::http::StatusCode;
use chancery_domain::Role;

#[tokio::test]
async fn home_page_has_one_sign_in_button() {
    let portal = TestPortal::open().await;
    let mut browser = portal.browser();
    let home = browser.get("/").await;
    assert_eq!(home.status, StatusCode::OK);
    for part in
        ["href=\"/auth/sign-in\"", "<strong>127.0.0.1:9</strong>", "@company.com", "Marlow &#38; Finch"]
    {
        assert!(home.body.contains(part), "{part}: {}", home.body);
    }
    assert_eq!(home.body.matches("class=\"button").count(), 1);
    browser.follow_callback(claims("1", "ann@company.com")).await;
    let home = browser.get("/").await;
    assert_eq!((home.status, home.location()), (StatusCode::SEE_OTHER, "/clients"));
}

#[tokio::test]
async fn client_list_is_html_or_json_and_shows_the_current_role() {
    let portal = TestPortal::open().await;
    let mut browser = portal.browser();
    browser.follow_callback(claims("1", "ann@company.com")).await;
    let page = browser.get("/clients").await;
    for part in [
        "No clients yet",
        "ann@company.com",
        "<span class=\"badge badge-role\">Consultant</span>",
        "action=\"/auth/sign-out\"",
        "href=\"/profile\"",
        "<a href=\"/clients\" aria-current=\"page\">Clients</a>",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let ann = portal.portal.store.people.list_people().await.unwrap()[0].id;
    portal.portal.store.people.set_role(manage(&portal.portal), ann, Role::Partner).await.unwrap();
    assert!(browser.get("/clients").await.body.contains("Partner</span>"), "on the very next request");
    browser.accept = "application/json";
    let json = browser.get("/clients").await;
    let body: serde_json::Value = serde_json::from_str(&json.body).unwrap();
    assert_eq!(body, serde_json::json!({"clients": [], "page": 1, "pages": 1, "total": 0}));
}

#[tokio::test]
async fn pages_have_no_inline_or_external_assets() {
    let portal = TestPortal::open_with(crate::SecondFactor::EmailCode).await;
    let mut browser = portal.browser();
    browser.follow_callback(claims("1", "ann@company.com")).await;
    let mut pages =
        vec![browser.get("/auth/code").await, browser.get("/").await, browser.get("/signed-out").await];
    browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
    for path in ["/clients", "/profile", "/sessions", "/nowhere", "/auth/code"] {
        pages.push(browser.get(path).await);
    }
    for page in pages {
        // Scripts are our own files, and only on signed-in pages.
        let own_scripts = page.body.matches("<script src=\"/assets/").count();
        assert_eq!(page.body.matches("<script").count(), own_scripts, "{}", page.body);
        let is_page = page.status == StatusCode::OK && page.body.contains("class=\"bar-account\"");
        assert_eq!(own_scripts > 0, is_page, "{}", page.body);
        for part in ["<style", " style=", "javascript:", "http://", "https://", " onclick", " hx-on"] {
            assert!(!page.body.contains(part), "{part}: {}", page.body);
        }
        assert!(page.body.contains("lang=\"en\"") && page.body.contains("id=\"main\" tabindex=\"-1\""));
        assert_eq!(page.body.matches("<h1").count(), 1, "{}", page.body);
        assert_eq!(page.headers["cache-control"], "no-store");
        assert!(
            page.headers.contains_key("content-security-policy") && page.headers.contains_key("x-request-id")
        );
    }
}
