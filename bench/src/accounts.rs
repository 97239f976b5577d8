//! Accounts and keys for benchmarks, created as the command line does: with the operator's permit; and their usage.

use chancery_domain::{
    AccountId, ApiKey, Clock, KeyId, KeyLimits, Nanos, OsRandomness, Prices, Principal, RateLimits,
    RequestId, StopReason, SystemClock, TokenPrice, UsageRow,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageAccounts, Policy};
use chancery_store::{AccountChange, AccountSubject, BillingChange, NewAccount, NewKey, Store};
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

/// An invoice needs an address.
pub async fn set_billing_address(store: &Store, account: AccountId, address: &str) {
    let billing = BillingChange { address: Some(address.parse().unwrap()), email: None };
    change(store, AccountChange::SetBilling { account, change: billing }).await;
}

pub async fn create_key(store: &Store, account: AccountId, label: &str) -> (KeyId, ApiKey) {
    let key = ApiKey::generate(&OsRandomness);
    let new = NewKey {
        prefix: key.prefix(),
        hash: key.hash(),
        label: label.to_owned(),
        account: Some(account),
        created_at: SystemClock.now(),
        limits: KeyLimits::default(),
    };
    match change(store, AccountChange::CreateKey(new)).await {
        AccountSubject::Key(stored) => (stored.id, key),
        AccountSubject::Account(account) => panic!("{account:?}"),
    }
}

/// One key for each of this many new accounts, whose rate limits no benchmark reaches.
pub async fn unlimited_keys(store: &Store, accounts: usize) -> Vec<String> {
    let limits = RateLimits { requests_per_min: u32::MAX, tokens_per_min: u32::MAX };
    let mut keys = Vec::new();
    for number in 0..accounts {
        let account = create_account(store, &format!("Account {number}"), limits).await;
        let (_, key) = create_key(store, account, "backend").await;
        keys.push(key.reveal().to_owned());
    }
    keys
}

/// What one request of a benchmark used.
pub fn usage_row(account: AccountId, key: KeyId) -> UsageRow {
    let at = SystemClock.now();
    let prices = Prices {
        input: TokenPrice::from_nanos_per_token(100),
        cached_input: TokenPrice::from_nanos_per_token(100),
        output: TokenPrice::from_nanos_per_token(400),
    };
    UsageRow {
        request_id: RequestId::new(at, &OsRandomness),
        account,
        key,
        model: "smollm2-135m".to_owned(),
        input_tokens: 290,
        cached_input_tokens: 0,
        output_tokens: 64,
        prices,
        cost: Nanos(290 * 100 + 64 * 400),
        at,
        stop_reason: StopReason::Complete,
    }
}
