//! Conformance: API keys.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{HOSTILE_TEXTS, NOON, account, key, new_key};
use chancery_domain::{AccountId, KeyId, KeyPrefix, KeyState, UnixMillis};
use chancery_store::{AccountError, DbError};
use std::sync::Arc;

pub async fn created_key_is_found_with_its_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await;
    let new = new_key(Some(account.id));
    let created = store.create_key(new.clone()).await.unwrap();
    assert_eq!((created.prefix.clone(), created.label.clone()), (new.prefix, new.label));
    assert_eq!(
        (created.account, created.created_at, created.state),
        (Some(account.id), NOON, KeyState::Active)
    );
    let found = store.keys.key_by_prefix(&created.prefix).await.unwrap().unwrap();
    assert_eq!(found.key.id, created.id);
    assert!(found.key.hash.matches(&new.hash));
    assert_eq!(found.account, Some(account.clone()));

    let closed = store.close_account(&account.name, NOON).await.unwrap();
    let found = store.keys.key_by_prefix(&created.prefix).await.unwrap().unwrap();
    assert_eq!(found.account, Some(closed), "closing is seen by the next lookup");
}

pub async fn key_without_account_has_none(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let created = key(&store, None).await;
    let found = store.keys.key_by_prefix(&created.prefix).await.unwrap().unwrap();
    assert!(found.key.account.is_none() && found.account.is_none());
}

pub async fn an_unknown_prefix_finds_nothing(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    key(&store, None).await;
    for prefix in ["ck_nobody00", "", "%", "ck_\0", "' OR ''='"] {
        let prefix = KeyPrefix::from_stored(prefix.to_owned());
        assert!(store.keys.key_by_prefix(&prefix).await.unwrap().is_none());
    }
}

pub async fn duplicate_key_prefix_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await;
    let first = key(&store, None).await;
    for account in [None, Some(account.id)] {
        let mut twin = new_key(account);
        twin.prefix = first.prefix.clone();
        let error = store.create_key(twin).await.unwrap_err();
        assert!(matches!(error, AccountError::KeyPrefixTaken(taken) if taken == first.prefix));
    }
    let stored = store.keys.key_by_prefix(&first.prefix).await.unwrap().unwrap();
    assert!(stored.key.hash.matches(&first.hash));
}

pub async fn creating_key_for_closed_or_unknown_account_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await;
    store.close_account(&account.name, NOON).await.unwrap();
    let error = store.create_key(new_key(Some(account.id))).await.unwrap_err();
    assert!(matches!(error, AccountError::AccountClosed(closed) if closed == account.name));
    let error = store.create_key(new_key(Some(AccountId(777)))).await.unwrap_err();
    assert!(matches!(error, AccountError::NoSuchAccountId(AccountId(777))));
    assert!(store.account_lookup.list_keys().await.unwrap().is_empty());
}

pub async fn key_list_is_oldest_first_and_includes_revoked(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await;
    let mut expected = Vec::new();
    for (age_ms, owner) in [(0, None), (2, Some(account.id)), (1, None), (2, None)] {
        let mut new = new_key(owner);
        new.created_at = UnixMillis(NOON.0 - age_ms);
        let key = store.create_key(new).await.unwrap();
        expected.push((-age_ms, key.id));
        if age_ms == 1 {
            store.revoke_key(&key.prefix, NOON).await.unwrap();
        }
    }
    expected.sort();
    let listed = store.account_lookup.list_keys().await.unwrap();
    let ids: Vec<KeyId> = listed.iter().map(|owner| owner.key.id).collect();
    assert_eq!(ids, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
    assert_eq!(listed.iter().filter(|owner| owner.account.as_ref() == Some(&account)).count(), 1);
    assert_eq!(listed.iter().filter(|owner| owner.key.state != KeyState::Active).count(), 1);
}

pub async fn attaching_assigns_key_to_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await, account(&store, "Two").await);
    let key = key(&store, None).await;
    for account in [one, two] {
        store.attach_key(&key.prefix, account.id).await.unwrap();
        let found = store.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap();
        assert_eq!((found.key.account, found.account), (Some(account.id), Some(account)));
    }
}

pub async fn attaching_to_closed_or_unknown_account_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (open, shut) = (account(&store, "Open").await, account(&store, "Shut").await);
    store.close_account(&shut.name, NOON).await.unwrap();
    let key = key(&store, Some(open.id)).await;
    let error = store.attach_key(&key.prefix, shut.id).await.unwrap_err();
    assert!(matches!(error, AccountError::AccountClosed(closed) if closed == shut.name));
    let error = store.attach_key(&key.prefix, AccountId(777)).await.unwrap_err();
    assert!(matches!(error, AccountError::NoSuchAccountId(AccountId(777))));
    let found = store.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap();
    assert_eq!(found.account, Some(open), "a refused change changes nothing");
}

pub async fn attaching_revoked_or_unknown_key_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await;
    let key = key(&store, None).await;
    store.revoke_key(&key.prefix, NOON).await.unwrap();
    let error = store.attach_key(&key.prefix, account.id).await.unwrap_err();
    assert!(matches!(error, AccountError::KeyRevoked(revoked) if revoked == key.prefix));
    let unknown = KeyPrefix::from_stored("ck_nobody00".to_owned());
    let error = store.attach_key(&unknown, account.id).await.unwrap_err();
    assert!(matches!(error, AccountError::NoSuchKey));
    let found = store.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap();
    assert!(found.account.is_none(), "a refused change changes nothing");
}

pub async fn revoking_twice_keeps_first_revoked_at(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let key = key(&store, None).await;
    for at_ms in [NOON.0, NOON.0 + 1, NOON.0 - 1] {
        store.revoke_key(&key.prefix, UnixMillis(at_ms)).await.unwrap();
        let found = store.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap();
        assert_eq!(found.key.state, KeyState::Revoked { at: NOON });
    }
    let unknown = KeyPrefix::from_stored("ck_nobody00".to_owned());
    let error = store.revoke_key(&unknown, NOON).await.unwrap_err();
    assert!(matches!(error, AccountError::NoSuchKey));
}

pub async fn hostile_labels_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for label in HOSTILE_TEXTS.into_iter().chain(["", " ", "two\nlines\ttabbed", "\u{7f}\u{1}"]) {
        let mut new = new_key(None);
        new.label = label.to_owned();
        let created = store.create_key(new).await.unwrap();
        assert_eq!(created.label, label);
        assert_eq!(store.keys.key_by_prefix(&created.prefix).await.unwrap().unwrap().key.label, label);
    }
}

pub async fn nul_in_label_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut new = new_key(None);
    new.label = "before\0after".to_owned();
    let error = store.create_key(new).await.unwrap_err();
    assert!(matches!(error, AccountError::Database(DbError::NulCharacter { .. })), "{error}");
    assert!(store.account_lookup.list_keys().await.unwrap().is_empty());
}
