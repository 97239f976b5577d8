//! API keys, and how long their state is cached.

use crate::{Fixture, new_key};
use chancery_domain::{ApiKey, Clock, OsRandomness};
use chancery_metering::MeterError;
use std::time::Duration;

#[tokio::test]
async fn revoked_key_stays_cached_for_less_than_a_second() {
    let fixture = Fixture::with(|_, _| {}).await;
    let key = fixture.key.reveal();
    assert_eq!(fixture.meter.authenticate(Some(key)).await.unwrap(), fixture.caller);
    fixture.store.revoke_key(&fixture.key.prefix(), fixture.clock.now()).await.unwrap();
    assert!(fixture.meter.authenticate(Some(key)).await.is_ok(), "the key was not remembered");
    fixture.clock.advance(Duration::from_millis(999));
    assert!(matches!(fixture.meter.authenticate(Some(key)).await, Err(MeterError::InvalidKey)));
}

#[tokio::test]
async fn whole_key_is_verified_not_only_its_prefix() {
    let fixture = Fixture::with(|_, _| {}).await;
    let key = fixture.key.reveal();
    assert!(fixture.meter.authenticate(Some(key)).await.is_ok());
    for index in [12, 30, 54] {
        let mut forged = key.to_owned();
        let other = if &key[index..=index] == "Q" { "R" } else { "Q" };
        forged.replace_range(index..=index, other);
        let outcome = fixture.meter.authenticate(Some(&forged)).await;
        assert!(matches!(outcome, Err(MeterError::InvalidKey)), "index {index}");
    }
}

#[tokio::test]
async fn key_without_an_account_is_rejected() {
    let fixture = Fixture::with(|_, _| {}).await;
    let key = ApiKey::generate(&OsRandomness);
    fixture.store.create_key(new_key(&key, None)).await.unwrap();
    assert!(matches!(
        fixture.meter.authenticate(Some(key.reveal())).await,
        Err(MeterError::NoBillingAccount)
    ));
    assert!(matches!(fixture.meter.authenticate(None).await, Err(MeterError::InvalidKey)));
}
