//! Keys, and how long their state is remembered.

use crate::{Firm, new_key};
use chancery_domain::{ApiKey, Clock, OsRandomness};
use chancery_metering::MeterError;
use std::time::Duration;

#[tokio::test]
async fn a_revoked_key_is_forgotten_within_a_second_and_remembered_no_longer() {
    let firm = Firm::with(|_, _| {}).await;
    let key = firm.key.reveal();
    assert_eq!(firm.meter.authenticate(Some(key)).await.unwrap(), firm.caller);
    firm.store.revoke_key(&firm.key.prefix(), firm.clock.now()).await.unwrap();
    assert!(firm.meter.authenticate(Some(key)).await.is_ok(), "the key was not remembered");
    firm.clock.advance(Duration::from_millis(999));
    assert!(matches!(firm.meter.authenticate(Some(key)).await, Err(MeterError::InvalidKey)));
}

#[tokio::test]
async fn a_key_is_checked_whole_and_not_by_its_prefix() {
    let firm = Firm::with(|_, _| {}).await;
    let key = firm.key.reveal();
    assert!(firm.meter.authenticate(Some(key)).await.is_ok());
    for place in [12, 30, 54] {
        let mut forged = key.to_owned();
        let other = if &key[place..=place] == "Q" { "R" } else { "Q" };
        forged.replace_range(place..=place, other);
        let answer = firm.meter.authenticate(Some(&forged)).await;
        assert!(matches!(answer, Err(MeterError::InvalidKey)), "place {place}");
    }
}

#[tokio::test]
async fn a_key_without_an_account_bills_nobody() {
    let firm = Firm::with(|_, _| {}).await;
    let key = ApiKey::generate(&OsRandomness);
    firm.store.create_key(new_key(&key, None)).await.unwrap();
    assert!(matches!(firm.meter.authenticate(Some(key.reveal())).await, Err(MeterError::NoBillingAccount)));
    assert!(matches!(firm.meter.authenticate(None).await, Err(MeterError::InvalidKey)));
}
