//! The alert checker: thresholds, recipients, and each alert once. Every case runs on both databases.

use super::firm::{CAP, NOON, TestFirm};
use chancery_domain::{Clock, KeyLimits, Nanos, Role, UnixMillis};
use chancery_store::AlertSubject;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(60 * 60);
const NOTHING: [&str; 0] = [];

macro_rules! on_both_databases {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&super::TestFirm::on_sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&super::TestFirm::on_postgres().await).await;
            })*
        }
    };
}

on_both_databases! {
    each_threshold_is_sent_once_and_the_highest_replaces_the_lower
    first_rejection_is_sent_once
    keys_have_alerts_of_their_own
    billing_contact_partners_and_webhooks_get_each_alert
    raised_cap_has_alerts_of_its_own
    expiring_key_is_announced_twice
    last_rejection_of_a_month_is_found_in_the_next
    every_key_is_checked_for_spending_and_expiry
}

/// A firm with a cap, and Ruth as its partner.
async fn capped(firm: &TestFirm) {
    firm.person("ruth", Role::Partner).await;
    firm.set_cap(CAP).await;
}

async fn each_threshold_is_sent_once_and_the_highest_replaces_the_lower(firm: &TestFirm) {
    capped(firm).await;
    let key = firm.key(KeyLimits::default()).await;
    firm.spend(&key, 499).await;
    assert_eq!(firm.subjects().await, NOTHING);
    firm.spend(&key, 2).await;
    assert_eq!(firm.subjects().await, ["The account Hale & Ward has spent 50 % of its cap for 2026-11"]);
    assert_eq!(firm.subjects().await, NOTHING, "once");
    firm.spend(&key, 300).await;
    assert_eq!(firm.subjects().await, ["The account Hale & Ward has spent 80 % of its cap for 2026-11"]);
    firm.set_cap(Nanos(900)).await;
    assert_eq!(
        firm.subjects().await,
        ["The account Hale & Ward has spent 80 % of its cap for 2026-11"],
        "both thresholds of the new cap are passed, and one alert is enough"
    );
    assert_eq!(firm.subjects().await, NOTHING);
}

async fn first_rejection_is_sent_once(firm: &TestFirm) {
    capped(firm).await;
    firm.reject(firm.account_subject(), CAP).await;
    let expected = ["The account Hale & Ward: request rejected by its spending cap for 2026-11"];
    assert_eq!(firm.subjects().await, expected);
    firm.reject(firm.account_subject(), CAP).await;
    assert_eq!(firm.subjects().await, NOTHING);
    firm.reject(firm.account_subject(), Nanos(5)).await;
    assert_eq!(firm.subjects().await, NOTHING, "a cap that was replaced");
}

async fn keys_have_alerts_of_their_own(firm: &TestFirm) {
    firm.person("ruth", Role::Partner).await;
    let key = firm.key(KeyLimits { spend_per_month: Some(CAP), ..KeyLimits::default() }).await;
    let other = firm.key(KeyLimits::default()).await;
    firm.spend(&other, 900).await;
    assert_eq!(firm.subjects().await, NOTHING, "the other key has no cap");
    firm.spend(&key, 600).await;
    firm.reject(AlertSubject::Key(key.id), CAP).await;
    let name = format!("The key {} (backend) of Hale & Ward", key.prefix);
    assert_eq!(
        firm.subjects().await,
        [
            format!("{name} has spent 50 % of its cap for 2026-11"),
            format!("{name}: request rejected by its spending cap for 2026-11"),
        ]
    );
}

async fn billing_contact_partners_and_webhooks_get_each_alert(firm: &TestFirm) {
    capped(firm).await;
    firm.person("maya", Role::Consultant).await;
    firm.person("paul", Role::Partner).await;
    firm.webhook("wh_one", "https://example.com/hooks").await;
    let destinations = async || {
        let messages = firm.check().await;
        assert!(messages.iter().all(|message| message.event_id == messages[0].event_id), "{messages:?}");
        messages.into_iter().map(|message| message.destination).collect::<Vec<_>>()
    };
    firm.set_billing_email("bills/2026@hale.example").await;
    firm.reject(firm.account_subject(), CAP).await;
    let expected = ["bills/2026@hale.example", "paul@example.com", "ruth@example.com", "wh_one"];
    assert_eq!(destinations().await, expected, "the billing contact's address could not sign in");
    firm.set_billing_email("Ruth@Example.com").await;
    firm.set_cap(Nanos(7)).await;
    firm.reject(firm.account_subject(), Nanos(7)).await;
    assert_eq!(destinations().await, ["Ruth@Example.com", "paul@example.com", "wh_one"], "each mailbox once");
    firm.set_billing_email("bills..x@hale.example").await;
    firm.set_cap(Nanos(8)).await;
    firm.reject(firm.account_subject(), Nanos(8)).await;
    let expected = ["paul@example.com", "ruth@example.com", "wh_one"];
    assert_eq!(
        destinations().await,
        expected,
        "an address without a mailbox does not keep the others from theirs"
    );
}

async fn raised_cap_has_alerts_of_its_own(firm: &TestFirm) {
    capped(firm).await;
    let key = firm.key(KeyLimits::default()).await;
    firm.spend(&key, 600).await;
    assert_eq!(firm.subjects().await.len(), 1);
    firm.set_cap(Nanos(10_000)).await;
    assert_eq!(firm.subjects().await, NOTHING);
    firm.spend(&key, 5_000).await;
    assert_eq!(firm.subjects().await, ["The account Hale & Ward has spent 50 % of its cap for 2026-11"]);
}

async fn expiring_key_is_announced_twice(firm: &TestFirm) {
    firm.person("ruth", Role::Partner).await;
    let expires_at = Some(NOON.after(8 * 24 * HOUR));
    let key = firm.key(KeyLimits { expires_at, ..KeyLimits::default() }).await;
    let name = format!("The key {} (backend) of Hale & Ward", key.prefix);
    assert_eq!(firm.subjects().await, NOTHING);
    firm.clock.advance(25 * HOUR);
    assert_eq!(firm.subjects().await, [format!("{name} expires within 7 days")]);
    assert_eq!(firm.subjects().await, NOTHING);
    firm.clock.advance(6 * 24 * HOUR);
    assert_eq!(firm.subjects().await, [format!("{name} expires within 1 day")]);
    firm.clock.advance(24 * HOUR);
    assert_eq!(firm.subjects().await, NOTHING, "it has expired");
}

async fn last_rejection_of_a_month_is_found_in_the_next(firm: &TestFirm) {
    capped(firm).await;
    // 2026-12-01 00:00 UTC.
    let december = UnixMillis(1_796_083_200_000);
    let until_december = Duration::from_millis(u64::try_from(december.0 - firm.clock.now().0).unwrap());
    firm.clock.advance(until_december - Duration::from_secs(1));
    firm.reject(firm.account_subject(), CAP).await;
    firm.clock.advance(Duration::from_secs(2));
    assert_eq!(
        firm.subjects().await,
        ["The account Hale & Ward: request rejected by its spending cap for 2026-11"]
    );
    assert_eq!(firm.subjects().await, NOTHING);
}

async fn every_key_is_checked_for_spending_and_expiry(firm: &TestFirm) {
    firm.person("ruth", Role::Partner).await;
    let soon = Some(NOON.after(HOUR));
    let mut keys = Vec::new();
    for _ in 0..3 {
        keys.push(
            firm.key(KeyLimits { expires_at: soon, spend_per_month: Some(CAP), ..KeyLimits::default() })
                .await,
        );
    }
    for key in &keys {
        firm.spend(key, 500).await;
    }
    assert_eq!(firm.subjects().await.len(), 2 * keys.len());
    assert_eq!(firm.subjects().await, NOTHING);
}
