//! "Not yours" and "not there" get the same response: the same bytes and headers. Equal timing is measured, not tested, because it
//! needs an idle machine: `make bench-portal`.

use super::browser::Reply;
use super::firm::Firm;
use super::routes::cases::{CASES, Guard};
use super::routes::{Fresh, HTML, JSON, UNUSED_ID, ask};
use axum::http::{HeaderMap, StatusCode};
use chancery_domain::ClientId;

/// Removes headers that differ between any two replies.
fn without_the_requests_own(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in ["x-request-id", "date"] {
        headers.remove(name);
    }
    headers
}

fn assert_same(first: &Reply, second: &Reply, what: &str) {
    assert_eq!(first.status, second.status, "{what}");
    assert_eq!(first.body, second.body, "{what}");
    assert_eq!(without_the_requests_own(&first.headers), without_the_requests_own(&second.headers), "{what}");
}

#[tokio::test]
async fn every_client_route_hides_existence() {
    let mut firm = Firm::open().await;
    let fresh = Fresh::make(&mut firm).await;
    let (foreign, gone) = (fresh.client(), ClientId(fresh.client().0 + 1));
    let about_clients = CASES.iter().filter(|case| case.path.contains("{id}"));
    let mut routes = 0;
    for case in about_clients {
        assert!(matches!(case.guard, Guard::OwnerOrPartner | Guard::PartnerOfClient), "{}", case.path);
        for accept in [HTML, JSON] {
            let browser = &mut firm.ben.browser;
            browser.accept = accept;
            let what = format!("{} {} for {accept}", case.method, case.path);
            let not_yours = ask(browser, case, &fresh, foreign).await;
            assert_eq!(not_yours.status, StatusCode::FORBIDDEN, "{what}");
            assert!(!not_yours.body.contains(&foreign.to_string()), "{what}: {}", not_yours.body);
            let numbers =
                [gone, UNUSED_ID, ClientId(0), ClientId(-1), ClientId(i64::MAX), ClientId(i64::MIN)];
            for number in numbers {
                let not_there = ask(browser, case, &fresh, number).await;
                assert_same(&not_yours, &not_there, &format!("{what}: {number}"));
            }
        }
        routes += 1;
    }
    assert!(routes >= 11, "only {routes} routes are about a client");
    let not_yours = firm.ben.browser.get(&format!("/clients/{foreign}")).await;
    let too_large = firm.ben.browser.get("/clients/99999999999999999999999999").await;
    assert_same(&not_yours, &too_large, "a number that no client can have");
}

#[tokio::test]
async fn malformed_form_leaks_no_existence() {
    let mut firm = Firm::open().await;
    let fresh = Fresh::make(&mut firm).await;
    let posts = CASES.iter().filter(|case| case.method == "POST" && case.path.contains("{id}"));
    for case in posts {
        for form in
            ["", "version=x", "version=1&title=&text=&name=", "owner=nobody", "kind=note&title=a&text=b"]
        {
            for accept in [HTML, JSON] {
                let browser = &mut firm.ben.browser;
                browser.accept = accept;
                let not_yours = browser.post(&fresh.fill(case.path, fresh.client()), form).await;
                let not_there = browser.post(&fresh.fill(case.path, UNUSED_ID), form).await;
                let what = format!("{} with {form:?} for {accept}", case.path);
                assert!(not_yours.status.is_client_error(), "{what}: {}", not_yours.status);
                assert_same(&not_yours, &not_there, &what);
            }
        }
    }
}

#[tokio::test]
async fn archived_client_of_another_owner_is_the_same_403() {
    let mut firm = Firm::open().await;
    let created = firm.client(firm.ann.id, "Put away").await;
    let path = format!("/clients/{}", created.client);
    let open = firm.ben.browser.get(&path).await;
    assert_eq!(firm.ann.browser.post(&format!("{path}/archive"), "version=1").await.status, 303);
    assert_same(&open, &firm.ben.browser.get(&path).await, "archived");
}
