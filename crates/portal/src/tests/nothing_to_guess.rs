//! "Not yours" and "not there" are one answer: the same bytes, the same headers, and no telling difference in time.

use super::Desk;
use super::browser::Reply;
use super::firm::Firm;
use super::routes::cases::{CASES, Guard};
use super::routes::{Fresh, HTML, JSON, NOBODYS, ask};
use axum::http::{HeaderMap, StatusCode};
use chancery_domain::{ClientId, Clock, SystemClock};
use chancery_mail::MailRoute;
use std::time::Duration;

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

/// Pairs of requests, one for a client of somebody else's and one for a number that is nobody's.
const PAIRS: usize = 500;
/// How far the chance that one takes longer than the other may be from a half. With so many pairs and no difference at all it
/// is within 0.1 but for once in ten million runs.
const MAX_LEANING: f64 = 0.1;

#[tokio::test]
async fn what_is_not_yours_takes_as_long_as_what_is_not_there() {
    let mut firm = Firm::at(quick_desk().await).await;
    for number in 0..40 {
        firm.client(firm.ann.id, &format!("Client {number}")).await;
    }
    let theirs = format!("/clients/{}", firm.client(firm.ann.id, "In the middle").await.client);
    let nobodys = format!("/clients/{NOBODYS}");
    firm.ben.browser.accept = JSON;
    // Some rounds, for caches and for the machine to settle.
    for _ in 0..50 {
        time(&mut firm, &theirs).await;
        time(&mut firm, &nobodys).await;
    }
    let (mut not_yours, mut not_there) = (Vec::new(), Vec::new());
    for round in 0..PAIRS {
        // Which is first changes, so that what one request leaves behind for the next favours neither.
        if round % 2 == 0 {
            not_yours.push(time(&mut firm, &theirs).await);
            not_there.push(time(&mut firm, &nobodys).await);
        } else {
            not_there.push(time(&mut firm, &nobodys).await);
            not_yours.push(time(&mut firm, &theirs).await);
        }
    }
    let leaning = chance_that_longer(&not_yours, &not_there) - 0.5;
    let (mine, theirs) = (median(&mut not_yours), median(&mut not_there));
    eprintln!("not yours: {mine:?}, not there: {theirs:?}, leaning {leaning:+.3}");
    assert!(
        leaning.abs() < MAX_LEANING,
        "the time tells: not yours takes {mine:?}, not there {theirs:?} (leaning {leaning:+.3})"
    );
}

/// On a disk in memory where there is one: waiting for a real disk would hide a difference.
async fn quick_desk() -> Desk {
    let memory = std::path::Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let route = MailRoute::Outbox(folder.path().join("outbox"));
    Desk::open_in(folder, crate::SecondFactor::None, &route).await
}

async fn time(firm: &mut Firm, path: &str) -> Duration {
    let start = SystemClock.monotonic();
    let reply = firm.ben.browser.get(path).await;
    let taken = SystemClock.monotonic() - start;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    taken
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The chance that one of the first takes longer than one of the second (Mann and Whitney's U, over its largest value): half
/// where they are alike. Single slow requests, as on a busy machine, hardly move it.
fn chance_that_longer(first: &[Duration], second: &[Duration]) -> f64 {
    let wins: f64 = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| a.cmp(b)))
        .map(|order| match order {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        })
        .sum();
    wins / (first.len() as f64 * second.len() as f64)
}

#[test]
fn a_difference_of_a_seventh_of_the_spread_is_noticed() {
    let times: Vec<_> = (0..PAIRS as u64).map(|n| Duration::from_nanos(500_000 + n * 200)).collect();
    let longer: Vec<_> =
        times.iter().map(|time| *time + Duration::from_nanos(PAIRS as u64 * 200 / 7)).collect();
    assert!((chance_that_longer(&times, &times) - 0.5).abs() < 1e-9);
    assert!(chance_that_longer(&longer, &times) - 0.5 > MAX_LEANING);
}
