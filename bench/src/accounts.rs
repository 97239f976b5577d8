//! Accounts and keys for benchmarks, created as the command line does: with the operator's permit.

use chancery_domain::{
    AccountId, ApiKey, Clock, KeyId, OsRandomness, Principal, RateLimits, RequestId, SystemClock,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageAccounts, Policy};
use chancery_store::{AccountChange, AccountSubject, NewAccount, NewKey, Store};
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::load().unwrap());

async fn change(store: &Store, change: AccountChange) -> AccountSubject {
    let at = SystemClock.now();
    let authz_request =
        AuthzRequest { by: Principal::Operator, at, request_id: RequestId::new(at, &OsRandomness) };
    let permit = POLICY.decide::<ManageAccounts>(&authz_request, FirmResource).unwrap();
    store.accounts.change_account(permit, change).await.unwrap().subject
}

pub async fn create_account(store: &Store, name: &str, limits: RateLimits) -> AccountId {
    let new = NewAccount { name: name.parse().unwrap(), limits, created_at: SystemClock.now() };
    match change(store, AccountChange::CreateAccount(new)).await {
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
    match change(store, AccountChange::CreateKey(new)).await {
        AccountSubject::Key(stored) => (stored.id, key),
        AccountSubject::Account(account) => panic!("{account:?}"),
    }
}
