//! What one person may do in a minute, and how often they may export.

use super::TestPortal;
use super::firm::Firm;
use crate::DEFAULT_PERSON_REQUESTS_PER_MIN;
use crate::sign_in::throttle::MAX_PER_SUBNET;
use axum::http::{StatusCode, header};
use chancery_domain::{RequestId, Throttle, ThrottleKey};
use serde_json::Value;
use std::time::Duration;

async fn use_up_requests(firm: &Firm) {
    let portal = &firm.portal.portal;
    let request_id = RequestId::new(portal.clock.now(), portal.randomness.as_ref());
    for _ in 0..DEFAULT_PERSON_REQUESTS_PER_MIN {
        portal.request_limits.count(firm.ann.id, &request_id).await;
    }
}

#[tokio::test]
async fn requests_over_the_limit_are_429_until_retry_after() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    assert_eq!(firm.ann.browser.get("/clients").await.status, StatusCode::OK);
    use_up_requests(&firm).await;
    let decided = firm.decisions().await.len();

    let page = firm.ann.browser.get(&format!("/clients/{client}")).await;
    assert_eq!(page.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(page.body.contains("You can make 1,200 requests in a minute."), "{}", page.body);
    assert!(!page.body.contains("Harbour Lane Bakery"), "{}", page.body);
    let retry_after_s: u64 = page.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert_eq!(retry_after_s, 60);
    let mut elsewhere = firm.ann.elsewhere(&firm.portal).await;
    elsewhere.accept = "application/json";
    let json = elsewhere.get("/clients").await;
    assert_eq!(
        (json.status, &json.headers[header::RETRY_AFTER]),
        (page.status, &page.headers["retry-after"])
    );
    let error: Value = serde_json::from_str(&json.body).unwrap();
    assert_eq!(error["error"]["code"], "too_many_requests", "all sessions of a person count together");
    assert_eq!(firm.decisions().await.len(), decided, "nothing was decided");
    assert_eq!(firm.ben.browser.get("/clients").await.status, StatusCode::OK, "others go on");

    firm.portal.clock.advance(Duration::from_secs(retry_after_s));
    assert_eq!(firm.ann.browser.get("/clients").await.status, StatusCode::OK);
}

#[tokio::test]
async fn person_over_the_limit_can_still_end_their_other_sessions() {
    let mut firm = Firm::open().await;
    let mut taken_over = firm.ann.elsewhere(&firm.portal).await;
    use_up_requests(&firm).await;
    assert_eq!(taken_over.get("/clients").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(firm.ann.browser.get("/sessions").await.status, StatusCode::OK);
    assert_eq!(firm.ann.browser.post("/sessions/end", "end=others").await.status, StatusCode::SEE_OTHER);
    firm.portal.clock.advance(Duration::from_secs(60));
    taken_over.accept = "application/json";
    assert_eq!(taken_over.get("/clients").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(firm.ann.browser.get("/clients").await.status, StatusCode::OK);
}

async fn quota_events(firm: &mut Firm) -> Vec<Value> {
    firm.ruth.browser.accept = "application/json";
    let audit = firm.ruth.browser.get("/audit?action=exportQuotaExceeded").await;
    let audit: Value = serde_json::from_str(&audit.body).unwrap();
    audit["rows"].as_array().unwrap().clone()
}

#[tokio::test]
async fn exports_over_the_hourly_quota_are_429_and_audited() {
    let mut firm = Firm::open().await;
    let (partner, max) = (firm.ruth.id.0, Throttle::EXPORT_PER_PERSON.limit);
    let exports = ["/clients/export.csv", "/clients/export.jsonl", "/audit.csv", "/invoices.csv"];
    for (number, path) in (0..max).zip(exports.iter().cycle()) {
        assert_eq!(firm.ruth.browser.get(path).await.status, StatusCode::OK, "{number}: {path}");
    }
    assert!(quota_events(&mut firm).await.is_empty());
    for path in exports {
        let rejected = firm.ruth.browser.get(path).await;
        assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
        assert_eq!(rejected.headers[header::RETRY_AFTER], "3600");
        let error: Value = serde_json::from_str(&rejected.body).unwrap();
        assert_eq!(error["error"]["reason"], "You can export 20 files in an hour and 60 in a day.");
    }
    let events = quota_events(&mut firm).await;
    assert_eq!(events.len(), exports.len());
    assert!(events.iter().all(|row| row["person"]["id"] == partner && row["ip_address"].is_string()));
    assert_eq!(firm.ann.browser.get("/clients/export.csv").await.status, StatusCode::OK, "others go on");
    assert_eq!(firm.ruth.browser.get("/clients").await.status, StatusCode::OK, "pages go on");
}

#[tokio::test]
async fn exports_over_the_daily_quota_do_not_use_up_the_hourly_one() {
    let mut firm = Firm::open().await;
    let (now, throttles) = (firm.portal.portal.clock.now(), firm.portal.portal.store.throttles.clone());
    for _ in 0..Throttle::EXPORT_PER_PERSON_AND_DAY.limit {
        throttles.count_throttle(ThrottleKey::ExportPerPersonAndDay(firm.ann.id), now).await.unwrap();
    }
    let rejected = firm.ann.browser.get("/clients/export.csv").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(rejected.body.contains("You can export again from 14 Nov, 09:14 UTC."), "{}", rejected.body);
    let in_hour = throttles.throttle_count(ThrottleKey::ExportPerPerson(firm.ann.id), now).await.unwrap();
    assert_eq!(in_hour.map_or(0, |count| count.count), 0);
    assert_eq!(quota_events(&mut firm).await.len(), 1);
}

#[tokio::test]
async fn flood_of_wrong_logout_requests_is_throttled_by_subnet() {
    const PATH: &str = "/auth/backchannel-logout";
    let portal = TestPortal::open().await;
    let (mut browser, mut other) = (portal.browser(), portal.browser());
    other.address = "198.51.100.7:50000".parse().unwrap();
    for _ in 1..MAX_PER_SUBNET {
        let throttle = &portal.portal.logout_throttle;
        throttle.count(&browser.address.ip().to_string(), portal.portal.clock.monotonic()).unwrap();
    }
    assert_eq!(browser.post(PATH, "").await.status, StatusCode::BAD_REQUEST);
    let reply = browser.post(PATH, "").await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(reply.headers.contains_key("retry-after") && reply.body.contains("temporarily_unavailable"));
    assert_eq!(other.post(PATH, "").await.status, StatusCode::BAD_REQUEST);
    portal.pass(Duration::from_secs(601));
    assert_eq!(browser.post(PATH, "").await.status, StatusCode::BAD_REQUEST);
}
