//! What pages offer, and how often the policy is asked for it.

use super::firm::Firm;
use axum::http::StatusCode;

/// For the record itself one decision; for the bar five questions about the firm, and three about this client.
/// Read off the code, it was 12 for everybody before each was asked once.
const EVALUATIONS_OF_A_RECORD_PAGE: u64 = 9;

#[tokio::test]
async fn a_record_page_asks_the_policy_once_for_each_thing_that_it_offers() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    let policy = firm.desk.portal.policy.clone();
    for somebody in [&mut firm.ann, &mut firm.ruth] {
        for path in [format!("/clients/{client}"), format!("/clients/{client}?open=facts")] {
            let before = policy.evaluations();
            assert_eq!(somebody.browser.get(&path).await.status, StatusCode::OK);
            assert_eq!(policy.evaluations() - before, EVALUATIONS_OF_A_RECORD_PAGE, "{path}");
        }
    }
}

#[tokio::test]
async fn a_change_asks_the_policy_once_and_nothing_about_what_pages_offer() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    let before = firm.desk.portal.policy.evaluations();
    let reply = firm.ann.browser.post(&format!("/clients/{client}/archive"), "").await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    assert_eq!(firm.desk.portal.policy.evaluations() - before, 1);
}
