//! The limits of a key, from authentication to settlement.

use crate::protocol::end;
use crate::{Fixture, NAME, call, new_key};
use chancery_domain::{
    ApiKey, Clock, KeyLimits, LimitScope, LimitUsage, Nanos, OsRandomness, UnixMillis, WINDOW,
};
use chancery_engine::StopReason;
use chancery_metering::limits::KEY_CACHE_TTL;
use chancery_metering::{Caller, GenerateRequest, MeterError, Reply};
use chancery_store::{CapChange, KeyLimitsChange, KeyRotation, LimitChange, LimitsChange, NewKey};
use std::time::Duration;

/// The maximum cost of the fixture's request: 6 tokens in and up to 50 out.
const MAX_COST: i64 = 6 * 1_000 + 50 * 2_000;

async fn fixture() -> Fixture {
    Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await
}

/// The caller of a new key of the fixture's account.
async fn caller(fixture: &Fixture, limits: KeyLimits) -> Caller {
    let key = ApiKey::generate(&OsRandomness);
    let new = NewKey { limits, ..new_key(&key, Some(fixture.caller.account)) };
    fixture.store.create_key(new).await.unwrap();
    fixture.meter.authenticate(Some(key.reveal())).await.unwrap()
}

async fn generate(fixture: &Fixture, caller: &Caller) -> Result<Reply, MeterError> {
    let (id, request) = fixture.new_request();
    fixture.meter.generate(call(caller, id, request)).await
}

#[tokio::test]
async fn key_is_invalid_from_its_expiry_on() {
    let fixture = fixture().await;
    let (key, now) = (ApiKey::generate(&OsRandomness), fixture.clock.now());
    let limits = KeyLimits { expires_at: Some(UnixMillis(now.0 + 100)), ..KeyLimits::default() };
    let new = NewKey { limits, ..new_key(&key, Some(fixture.caller.account)) };
    fixture.store.create_key(new).await.unwrap();
    assert!(fixture.meter.authenticate(Some(key.reveal())).await.is_ok());
    fixture.clock.advance(Duration::from_millis(99));
    assert!(fixture.meter.authenticate(Some(key.reveal())).await.is_ok());
    // Its state is still cached.
    fixture.clock.advance(Duration::from_millis(1));
    assert!(matches!(fixture.meter.authenticate(Some(key.reveal())).await, Err(MeterError::InvalidKey)));
    // A later expiry makes it valid again.
    let change = KeyLimitsChange { expires_at: LimitChange::Remove, ..KeyLimitsChange::default() };
    fixture.store.set_key_limits(&key.prefix(), change).await.unwrap();
    fixture.clock.advance(KEY_CACHE_TTL);
    assert!(fixture.meter.authenticate(Some(key.reveal())).await.is_ok());
}

#[tokio::test]
async fn old_secret_works_until_the_overlap_ends() {
    let fixture = fixture().await;
    let old = &fixture.key;
    let new = ApiKey::with_new_secret(&old.prefix(), &OsRandomness);
    let overlap_ends_at = fixture.clock.now().after(Duration::from_secs(10));
    let rotation = KeyRotation {
        key: old.prefix(),
        replaces: old.hash(),
        hash: new.hash(),
        overlap_ends_at,
        ends_running_overlap: false,
    };
    fixture.store.rotate_key(rotation).await.unwrap();
    let key_of = async |secret: &ApiKey| {
        fixture.meter.authenticate(Some(secret.reveal())).await.map(|caller| caller.key)
    };
    assert_eq!(key_of(old).await.unwrap(), fixture.caller.key);
    assert_eq!(key_of(&new).await.unwrap(), fixture.caller.key);
    fixture.clock.advance(Duration::from_secs(10));
    assert!(matches!(key_of(old).await, Err(MeterError::InvalidKey)));
    assert_eq!(key_of(&new).await.unwrap(), fixture.caller.key);
}

#[tokio::test]
async fn request_over_a_key_limit_counts_in_neither_bucket() {
    let fixture = fixture().await;
    let limited = caller(&fixture, KeyLimits { requests_per_min: Some(1), ..KeyLimits::default() }).await;
    generate(&fixture, &limited).await.unwrap();
    let rejected = generate(&fixture, &limited).await.unwrap_err();
    let MeterError::RateLimited { rejection, .. } = rejected else { panic!("{rejected}") };
    assert_eq!((rejection.scope(), rejection.retry_after_s()), (LimitScope::Key, 60));
    assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 10 });
    generate(&fixture, &fixture.caller).await.unwrap();
    fixture.clock.advance(WINDOW);
    generate(&fixture, &limited).await.unwrap();
}

#[tokio::test]
async fn uncapped_request_gets_what_the_keys_tokens_per_minute_allow() {
    let fixture =
        Fixture::with(|job, sink| end(sink, StopReason::MaxOutputTokens, job.max_output_tokens)).await;
    let limited = caller(&fixture, KeyLimits { tokens_per_min: Some(60), ..KeyLimits::default() }).await;
    let (id, request) = fixture.new_request();
    let request = GenerateRequest { max_output_tokens: None, ..request };
    let reply = fixture.meter.generate(call(&limited, id, request)).await.unwrap();
    assert_eq!(reply.output_tokens, 54);
    let status = fixture.meter.key_status(&limited).await.unwrap();
    assert_eq!(status.remaining.key.tokens_per_min, Some(0));
    let (id, request) = fixture.new_request();
    let request = GenerateRequest { max_output_tokens: Some(55), ..request };
    let rejected = fixture.meter.generate(call(&limited, id, request)).await.unwrap_err();
    let MeterError::ExceedsTokenLimit { scope, limit, .. } = rejected else { panic!("{rejected}") };
    assert_eq!((scope, limit), (LimitScope::Key, 60));
}

#[tokio::test]
async fn cap_of_a_key_rejects_while_its_account_has_room() {
    let fixture = fixture().await;
    let spend_per_month = Some(Nanos(MAX_COST));
    let limited = caller(&fixture, KeyLimits { spend_per_month, ..KeyLimits::default() }).await;
    assert!(limited.is_capped && !fixture.caller.is_capped);
    generate(&fixture, &limited).await.unwrap();
    let rejected = generate(&fixture, &limited).await.unwrap_err();
    let MeterError::SpendingCapReached(reached) = rejected else { panic!("{rejected}") };
    assert_eq!((reached.scope, reached.cap), (LimitScope::Key, Nanos(MAX_COST)));
    generate(&fixture, &fixture.caller).await.unwrap();

    let change = LimitsChange { spend_per_month: CapChange::Set(Nanos(1)), ..LimitsChange::default() };
    fixture.store.set_limits(&NAME.parse().unwrap(), change).await.unwrap();
    let other = caller(&fixture, KeyLimits::default()).await;
    let rejected = generate(&fixture, &other).await.unwrap_err();
    let MeterError::SpendingCapReached(reached) = rejected else { panic!("{rejected}") };
    assert_eq!(reached.scope, LimitScope::Account);
}

#[tokio::test]
async fn model_that_a_key_may_not_use_is_rejected_unless_it_is_unknown() {
    let fixture = fixture().await;
    let models = Some("letters".parse().unwrap());
    let limited = caller(&fixture, KeyLimits { models, ..KeyLimits::default() }).await;
    let rejected = generate(&fixture, &limited).await.unwrap_err();
    assert!(matches!(rejected, MeterError::ModelNotAllowed(name) if name == "words"));
    let (id, request) = fixture.new_request();
    let unknown = GenerateRequest { model: "letters".to_owned(), ..request };
    let rejected = fixture.meter.generate(call(&limited, id, unknown)).await.unwrap_err();
    assert!(matches!(rejected, MeterError::UnknownModel(_)), "{rejected}");
    assert_eq!(fixture.used().await, LimitUsage::default());
}

#[tokio::test]
async fn last_use_of_a_key_is_known_before_and_after_it_is_flushed() {
    let fixture = fixture().await;
    let last_use = async || fixture.meter.key_status(&fixture.caller).await.unwrap().last_used_at;
    assert_eq!(last_use().await, None);
    generate(&fixture, &fixture.caller).await.unwrap();
    let at = fixture.clock.now();
    assert_eq!(last_use().await, Some(at));
    fixture.meter.record_activity().await.unwrap();
    fixture.clock.advance(Duration::from_secs(5));
    assert_eq!(last_use().await, Some(at));
}
