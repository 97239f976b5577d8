//! The pages themselves.

use super::Desk;
use super::browser::claims;
use super::firm::manage;
use axum::http::StatusCode;
use chancery_domain::Role;

#[tokio::test]
async fn the_start_has_one_button_and_says_where_it_leads_and_for_whom_it_is() {
    let desk = Desk::open().await;
    let mut browser = desk.browser();
    let home = browser.get("/").await;
    assert_eq!(home.status, StatusCode::OK);
    for part in
        ["href=\"/auth/sign-in\"", "<strong>127.0.0.1:9</strong>", "@company.com", "Marlow &#38; Finch"]
    {
        assert!(home.body.contains(part), "{part}: {}", home.body);
    }
    assert_eq!(home.body.matches("class=\"button").count(), 1);
    browser.come_back(claims("1", "ann@company.com")).await;
    let home = browser.get("/").await;
    assert_eq!((home.status, home.location()), (StatusCode::SEE_OTHER, "/clients"));
}

#[tokio::test]
async fn the_clients_are_a_page_or_json_and_the_bar_says_who_one_is_at_this_moment() {
    let desk = Desk::open().await;
    let mut browser = desk.browser();
    browser.come_back(claims("1", "ann@company.com")).await;
    let page = browser.get("/clients").await;
    for part in [
        "No clients yet",
        "ann@company.com",
        "<span class=\"badge badge-role\">Consultant</span>",
        "action=\"/auth/sign-out\"",
        "href=\"/sessions\"",
        "<a href=\"/clients\" aria-current=\"page\">Clients</a>",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let ann = desk.portal.store.people.list_people().await.unwrap()[0].id;
    desk.portal.store.people.set_role(manage(&desk.portal), ann, Role::Partner).await.unwrap();
    assert!(browser.get("/clients").await.body.contains("Partner</span>"), "on the very next request");
    browser.accept = "application/json";
    let json = browser.get("/clients").await;
    let body: serde_json::Value = serde_json::from_str(&json.body).unwrap();
    assert_eq!(body, serde_json::json!({"clients": [], "page": 1, "pages": 1, "total": 0}));
}

#[tokio::test]
async fn no_page_has_style_or_script_of_its_own_or_anything_from_outside() {
    let desk = Desk::open_with(crate::SecondFactor::EmailCode).await;
    let mut browser = desk.browser();
    browser.come_back(claims("1", "ann@company.com")).await;
    let mut pages =
        vec![browser.get("/auth/code").await, browser.get("/").await, browser.get("/signed-out").await];
    browser.post("/auth/code", &format!("code={}", desk.newest_code())).await;
    for path in ["/clients", "/sessions", "/nowhere", "/auth/code"] {
        pages.push(browser.get(path).await);
    }
    for page in pages {
        // Scripts are files of ours, and only on pages that need somebody to be signed in.
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
