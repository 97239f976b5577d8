//! "Not yours" and "not there" are one answer: the same bytes and the same headers. That neither takes longer is measured, not
//! tested, because it needs a machine that does nothing else: `make bench-portal`.

use super::browser::Reply;
use super::firm::Firm;
use super::routes::cases::{CASES, Guard};
use super::routes::{Fresh, HTML, JSON, NOBODYS, ask};
use axum::http::{HeaderMap, StatusCode};
use chancery_domain::ClientId;

/// What may differ between any two replies.
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
async fn what_is_not_yours_and_what_is_not_there_are_the_same_bytes_and_headers_on_every_route() {
    let mut firm = Firm::open().await;
    let fresh = Fresh::make(&mut firm).await;
    let (theirs, gone) = (fresh.client(), ClientId(fresh.client().0 + 1));
    let about_clients = CASES.iter().filter(|case| case.path.contains("{id}"));
    let mut routes = 0;
    for case in about_clients {
        assert!(matches!(case.guard, Guard::OwnerOrPartner | Guard::PartnerOfClient), "{}", case.path);
        for accept in [HTML, JSON] {
            let browser = &mut firm.ben.browser;
            browser.accept = accept;
            let what = format!("{} {} for {accept}", case.method, case.path);
            let not_yours = ask(browser, case, &fresh, theirs).await;
            assert_eq!(not_yours.status, StatusCode::FORBIDDEN, "{what}");
            assert!(!not_yours.body.contains(&theirs.to_string()), "{what}: {}", not_yours.body);
            let numbers = [gone, NOBODYS, ClientId(0), ClientId(-1), ClientId(i64::MAX), ClientId(i64::MIN)];
            for number in numbers {
                let not_there = ask(browser, case, &fresh, number).await;
                assert_same(&not_yours, &not_there, &format!("{what}: {number}"));
            }
        }
        routes += 1;
    }
    assert!(routes >= 11, "only {routes} routes are about a client");
    let not_yours = firm.ben.browser.get(&format!("/clients/{theirs}")).await;
    let too_large = firm.ben.browser.get("/clients/99999999999999999999999999").await;
    assert_same(&not_yours, &too_large, "a number that no client can have");
}

#[tokio::test]
async fn a_form_that_cannot_be_read_tells_no_more_than_one_that_can() {
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
                let not_there = browser.post(&fresh.fill(case.path, NOBODYS), form).await;
                let what = format!("{} with {form:?} for {accept}", case.path);
                assert!(not_yours.status.is_client_error(), "{what}: {}", not_yours.status);
                assert_same(&not_yours, &not_there, &what);
            }
        }
    }
}

#[tokio::test]
async fn an_archived_client_of_somebody_elses_is_refused_like_any_other() {
    let mut firm = Firm::open().await;
    let made = firm.client(firm.ann.id, "Put away").await;
    let path = format!("/clients/{}", made.client);
    let open = firm.ben.browser.get(&path).await;
    assert_eq!(firm.ann.browser.post(&format!("{path}/archive"), "version=1").await.status, 303);
    assert_same(&open, &firm.ben.browser.get(&path).await, "archived");
}
