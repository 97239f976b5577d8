//! API keys, and how long their state is cached.

use crate::{Fixture, new_key};
use chancery_domain::{ApiKey, Clock, OsRandomness};
use chancery_metering::limits::{FAILED_KEY_BURST, FAILED_KEY_INTERVAL, KEY_CACHE_TTL};
use chancery_metering::{MeterError, PresentedKey};
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
        let outcome = fixture.meter.authenticate(Some(forged.as_str())).await;
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

#[tokio::test]
async fn unknown_prefix_is_remembered_but_a_new_key_works_within_a_second() {
    let fixture = Fixture::with(|_, _| {}).await;
    let key = ApiKey::generate(&OsRandomness);
    let is_valid = async || fixture.meter.authenticate(Some(key.reveal())).await.is_ok();
    assert!(!is_valid().await);
    fixture.store.create_key(new_key(&key, Some(fixture.caller.account))).await.unwrap();
    assert!(!is_valid().await, "the database was asked again");
    fixture.clock.advance(KEY_CACHE_TTL);
    assert!(is_valid().await);
}

#[tokio::test]
async fn peer_with_many_unknown_keys_is_throttled_and_others_are_not() {
    let fixture = Fixture::with(|_, _| {}).await;
    let authenticate = async |key: &ApiKey, peer: &str| {
        let presented = PresentedKey { text: Some(key.reveal()), peer: peer.parse().ok() };
        fixture.meter.authenticate(presented).await
    };
    let (guesser, same_network, other) = ("2001:db8::1", "2001:db8::2", "2001:db8:0:100::1");
    assert!(authenticate(&fixture.key, guesser).await.is_ok());
    for _ in 0..FAILED_KEY_BURST {
        let guess = authenticate(&ApiKey::generate(&OsRandomness), guesser).await;
        assert!(matches!(guess, Err(MeterError::InvalidKey)));
    }
    let [first, second, third] = [(); 3].map(|()| ApiKey::generate(&OsRandomness));
    for key in [&first, &second, &third] {
        fixture.store.create_key(new_key(key, Some(fixture.caller.account))).await.unwrap();
    }
    assert!(
        matches!(authenticate(&first, same_network).await, Err(MeterError::InvalidKey)),
        "the database was asked"
    );
    assert!(authenticate(&second, other).await.is_ok());
    assert!(authenticate(&second, guesser).await.is_ok(), "its state is cached");
    fixture.clock.advance(FAILED_KEY_INTERVAL);
    assert!(authenticate(&first, guesser).await.is_ok(), "a lookup is free");
    assert!(authenticate(&third, guesser).await.is_ok(), "a key that exists does not use it up");
    fixture.clock.advance(KEY_CACHE_TTL);
    for _ in 0..FAILED_KEY_BURST {
        assert!(authenticate(&ApiKey::generate(&OsRandomness), guesser).await.is_err());
    }
    fixture.store.revoke_key(&third.prefix(), fixture.clock.now()).await.unwrap();
    assert!(authenticate(&fixture.key, guesser).await.is_ok(), "it was found before, so it is read again");
    assert!(authenticate(&third, guesser).await.is_err(), "so is one that was revoked since");
}
