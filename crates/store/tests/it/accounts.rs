//! Conformance: accounts.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{HOSTILE_TEXTS, NOON, account, name, new_account};
use chancery_domain::{AccountName, AccountState, RateLimits, UnixMillis};
use chancery_store::{AccountError, LimitsChange};
use std::sync::Arc;

pub async fn created_account_round_trips(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    // An account name may not contain every character that the database can store.
    let names: Vec<&str> =
        HOSTILE_TEXTS.into_iter().filter(|text| text.parse::<AccountName>().is_ok()).collect();
    assert!(names.len() >= 8);
    for text in names.iter().copied() {
        let created = store.create_account(new_account(text)).await.unwrap();
        assert_eq!(created.name.as_str(), text);
        assert_eq!(created.limits, RateLimits { requests_per_min: 60, tokens_per_min: 60_000 });
        assert_eq!((created.created_at, created.state), (NOON, AccountState::Open));
        assert_eq!(store.account_lookup.account_by_name(&name(text)).await.unwrap(), created);
    }
    assert_eq!(store.account_lookup.list_accounts().await.unwrap().len(), names.len());
}

pub async fn duplicate_account_name_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let first = account(&store, "Hale & Ward").await;
    let error = store.create_account(new_account("Hale & Ward")).await.unwrap_err();
    assert!(matches!(error, AccountError::AccountNameTaken(taken) if taken == first.name));
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), [first]);
    account(&store, "hale & ward").await;
}

pub async fn accounts_are_listed_by_name_in_code_point_order(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for text in ["b", "Ä", "a", "B", "_", "a b", "ab", "é", "z"] {
        account(&store, text).await;
    }
    store.close_account(&name("B"), NOON).await.unwrap();
    let listed: Vec<String> = store
        .account_lookup
        .list_accounts()
        .await
        .unwrap()
        .iter()
        .map(|account| account.name.to_string())
        .collect();
    assert_eq!(listed, ["B", "_", "a", "a b", "ab", "b", "z", "Ä", "é"]);
}

pub async fn changing_one_limit_leaves_the_other(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let name = account(&store, "Hale & Ward").await.name;
    for (change, requests_per_min, tokens_per_min) in [
        (LimitsChange { requests_per_min: Some(7), ..LimitsChange::default() }, 7, 60_000),
        (LimitsChange { tokens_per_min: Some(9), ..LimitsChange::default() }, 7, 9),
        (LimitsChange::default(), 7, 9),
        (
            LimitsChange { requests_per_min: Some(0), tokens_per_min: Some(0), ..LimitsChange::default() },
            0,
            0,
        ),
    ] {
        let changed = store.set_limits(&name, change).await.unwrap();
        assert_eq!(changed.limits, RateLimits { requests_per_min, tokens_per_min });
        assert_eq!(store.account_lookup.account_by_name(&name).await.unwrap(), changed);
    }
}

pub async fn limits_accept_u32_max(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut new = new_account("Hale & Ward");
    new.limits = RateLimits { requests_per_min: u32::MAX, tokens_per_min: u32::MAX };
    assert_eq!(store.create_account(new.clone()).await.unwrap().limits, new.limits);
}

pub async fn closing_twice_keeps_first_closed_at(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let name = account(&store, "Hale & Ward").await.name;
    let closed = store.close_account(&name, NOON).await.unwrap();
    assert_eq!(closed.state, AccountState::Closed { at: NOON });
    assert_eq!(store.close_account(&name, UnixMillis(NOON.0 + 1)).await.unwrap(), closed);
    assert_eq!(store.account_lookup.account_by_name(&name).await.unwrap(), closed);
}

pub async fn unknown_account_error_names_it(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let name = name("Nobody");
    let error = store.account_lookup.account_by_name(&name).await.unwrap_err();
    assert!(matches!(error, AccountError::NoSuchAccount(ref missing) if *missing == name));
    assert!(error.to_string().contains("Nobody"));
}

pub async fn concurrent_creates_of_one_name_yield_one_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = Arc::clone(&store);
        racers.spawn(async move { store.create_account(new_account("Hale & Ward")).await });
    }
    let outcomes = racers.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert!(
        outcomes.iter().flat_map(Result::as_ref).count() == 1
            && outcomes
                .iter()
                .filter_map(|outcome| outcome.as_ref().err())
                .all(|error| matches!(error, AccountError::AccountNameTaken(_)))
    );
}
