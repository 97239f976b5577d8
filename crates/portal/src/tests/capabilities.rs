//! What pages offer, and how often they evaluate the policy for it.

use super::firm::Firm;
use axum::http::StatusCode;

/// One decision on the record, five checks on the firm for the navigation bar, and three on this client. Before each check ran
/// only once, there were 12 for every role, by reading the code.
const POLICY_CHECKS_PER_RECORD_PAGE: u64 = 9;

/// An open form restores unsaved text, which takes a decision to edit the record.
const POLICY_CHECKS_PER_OPEN_FORM: u64 = 1;

#[tokio::test]
async fn record_page_checks_each_capability_once() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    let policy = firm.portal.portal.policy.clone();
    for somebody in [&mut firm.ann, &mut firm.ruth] {
        let with_form = POLICY_CHECKS_PER_RECORD_PAGE + POLICY_CHECKS_PER_OPEN_FORM;
        for (query, checks) in [("", POLICY_CHECKS_PER_RECORD_PAGE), ("?open=facts", with_form)] {
            let before = policy.evaluations();
            assert_eq!(
                somebody.browser.get(&format!("/clients/{client}{query}")).await.status,
                StatusCode::OK
            );
            assert_eq!(policy.evaluations() - before, checks, "{query}");
        }
    }
}

#[tokio::test]
async fn change_makes_exactly_one_policy_decision() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    let before = firm.portal.portal.policy.evaluations();
    let reply = firm.ann.browser.post(&format!("/clients/{client}/archive"), "").await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    assert_eq!(firm.portal.portal.policy.evaluations() - before, 1);
}
