//! The bar above error pages, and the favicon.

use super::firm::{Firm, manage};
use axum::http::StatusCode;
use chancery_web::FAVICON_PATH;

#[tokio::test]
async fn error_pages_keep_the_navigation_bar() {
    let mut firm = Firm::open().await;
    for (path, status) in [("/nowhere", 404), ("/team", 403), ("/auth/callback", 400), ("/team/role", 405)] {
        let rejected = firm.ann.browser.get(path).await;
        assert_eq!(rejected.status, status, "{path}");
        for part in [
            "class=\"skip-link\" href=\"#main\"",
            "ann@company.com",
            "Consultant</span>",
            "action=\"/auth/sign-out\"",
            "<a href=\"/clients\">Clients</a>",
            "Marlow &#38; Finch",
        ] {
            assert!(rejected.body.contains(part), "{path}, {part}: {}", rejected.body);
        }
        assert_eq!(rejected.body.matches("<h1").count(), 1);
        assert!(!rejected.body.contains("aria-current"), "an error page is in no section");
    }
    let mut browser = firm.portal.browser();
    let strangers = browser.get("/nowhere").await;
    assert!(!strangers.body.contains("class=\"bar\"") && strangers.body.contains("class=\"wordmark\""));
    browser.cookies.insert("session".to_owned(), "f".repeat(43));
    assert_eq!(browser.get("/nowhere").await.body, strangers.body, "a forged session is nobody's");
    firm.ann.browser.accept = "application/json";
    let json = firm.ann.browser.get("/nowhere").await;
    assert!(serde_json::from_str::<serde_json::Value>(&json.body).is_ok(), "{}", json.body);
}

#[tokio::test]
async fn navigation_shows_firm_sections_to_partners_only() {
    let mut firm = Firm::open().await;
    let sections = |page: &str| {
        let all = ["/clients", "/invoices", "/usage", "/accounts", "/team", "/audit"];
        all.map(|path| page.contains(&format!("<li><a href=\"{path}\"")))
    };
    assert_eq!(sections(&firm.ruth.browser.get("/sessions").await.body), [true; 6]);
    assert_eq!(
        sections(&firm.ann.browser.get("/sessions").await.body),
        [true, false, false, false, false, false]
    );
    assert_eq!(sections(&firm.ruth.browser.get("/nowhere").await.body), [true; 6]);
    firm.portal
        .portal
        .store
        .people
        .set_role(manage(&firm.portal.portal), firm.ann.id, chancery_domain::Role::Partner)
        .await
        .unwrap();
    assert_eq!(sections(&firm.ann.browser.get("/sessions").await.body), [true; 6]);
    let team = firm.ruth.browser.get("/team").await;
    assert!(team.body.contains("<a href=\"/team\" aria-current=\"page\">Team</a>"), "{}", team.body);
}

#[tokio::test]
async fn every_page_links_the_public_favicon() {
    let mut firm = Firm::open().await;
    let mut stranger = firm.portal.browser();
    let link = format!("<link rel=\"icon\" type=\"image/svg+xml\" href=\"{FAVICON_PATH}\">");
    for page in [
        stranger.get("/").await,
        stranger.get("/nowhere").await,
        firm.ann.browser.get("/sessions").await,
        firm.ann.browser.get("/team").await,
    ] {
        assert!(page.body.contains(&link), "{}", page.body);
    }
    let picture = stranger.get(FAVICON_PATH).await;
    assert_eq!(picture.status, StatusCode::OK);
    assert_eq!(picture.headers["content-type"], "image/svg+xml; charset=utf-8");
    assert!(picture.headers["cache-control"].to_str().unwrap().contains("immutable"));
    assert!(picture.body.starts_with("<svg"));
}
