//! Accounts and keys of a firm that is measured, created as the command line does it: with the operator's permit.

use chancery_domain::{
    AccountId, ApiKey, Asker, Clock, KeyId, OsRandomness, RateLimits, RequestId, SystemClock,
};
use chancery_policy::{Asking, ManageAccounts, Policy, TheFirm};
use chancery_store::{AccountDeed, AccountSubject, NewAccount, NewKey, Store};
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::load().unwrap());

async fn change(store: &Store, change: AccountDeed) -> AccountSubject {
    let at = SystemClock.now();
    let asking = Asking { by: Asker::Operator, at, request_id: RequestId::new(at, &OsRandomness) };
    let permit = POLICY.decide::<ManageAccounts>(&asking, TheFirm).unwrap();
    store.accounts.do_with_account(permit, change).await.unwrap().subject
}

pub async fn create_account(store: &Store, name: &str, limits: RateLimits) -> AccountId {
    let new = NewAccount { name: name.parse().unwrap(), limits, created_at: SystemClock.now() };
    match change(store, AccountDeed::Make(new)).await {
        AccountSubject::Account(account) => account.id,
        AccountSubject::Key(key) => panic!("{key:?}"),
    }
}

pub async fn create_key(store: &Store, account: AccountId, label: &str) -> (KeyId, ApiKey) {
    let key = ApiKey::generate(&OsRandomness);
    let new = NewKey {
        prefix: key.prefix(),
        hash: key.hash(),
        label: label.to_owned(),
        account: Some(account),
        created_at: SystemClock.now(),
    };
    match change(store, AccountDeed::MakeKey(new)).await {
        AccountSubject::Key(stored) => (stored.id, key),
        AccountSubject::Account(account) => panic!("{account:?}"),
    }
}
