//! Second factors: no application gets a code before one that is required, or that the account has.

use super::harness::{CALLBACK, ISSUER, TestProvider, authorize_path};
use chancery_auth::SecondFactorPolicy;
use chancery_domain::{Clock as _, ManualClock, SystemClock};
use chancery_store::{NewTotpSecret, ProviderAccount};
use std::sync::Arc;

async fn required() -> TestProvider {
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    TestProvider::start_with_policy(ISSUER, CALLBACK, clock, SecondFactorPolicy::Required).await
}

#[tokio::test]
async fn required_factor_comes_before_consent_and_code() {
    let served = required().await;
    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let path = authorize_path(&[]);
    let (set_up, parameters) = served.get(&browser, &path).await.redirect_to();
    assert_eq!(set_up, "/security/set-up");
    assert!(parameters["return_to"].starts_with("/authorize?"), "{parameters:?}");
    let page = served.get(&browser, &format!("{set_up}?return_to=/")).await;
    assert!(page.status == 200 && page.body.contains("requires a second factor"), "{page:?}");
}

#[tokio::test]
async fn prompt_none_without_the_required_factor_is_login_required() {
    let served = required().await;
    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let reply = served.get(&browser, &authorize_path(&[("prompt", "none")])).await;
    assert_eq!(reply.returned()["error"], "login_required");
}

async fn add_factor(served: &TestProvider, account: &ProviderAccount) {
    let new = NewTotpSecret {
        subject: account.subject.clone(),
        secret: vec![7; 20],
        step: 1,
        recovery_codes: Vec::new(),
        at: served.clock.now(),
    };
    served.provider.store.second_factors.add_totp(&new).await.unwrap();
}

#[tokio::test]
async fn session_from_before_the_factor_gets_no_code() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    served.code(&browser, &[]).await;
    add_factor(&served, &account).await;
    let (sign_in, parameters) = served.get(&browser, &authorize_path(&[])).await.redirect_to();
    assert_eq!(sign_in, "/sign-in");
    assert!(parameters["return_to"].starts_with("/authorize?"), "{parameters:?}");
    let reply = served.get(&browser, &authorize_path(&[("prompt", "none")])).await;
    assert_eq!(reply.returned()["error"], "login_required");
}

#[tokio::test]
async fn consent_of_a_session_from_before_the_factor_gets_no_code() {
    let served = TestProvider::start().await;
    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let page = served.get(&browser, &authorize_path(&[])).await;
    add_factor(&served, &account).await;
    let question = page.hidden("question");
    let reply = served.post(&browser, "/consent", &[("question", &question), ("decision", "allow")]).await;
    assert_eq!(reply.status, 410, "{reply:?}");
}
