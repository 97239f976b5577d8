//! Sample accounts, keys and rows.

use crate::databases::TestDatabase;
use chancery_domain::{
    Account, AccountId, AccountName, ApiKey, Key, KeyId, KeyLimits, Nanos, OsRandomness, Prices, RateLimits,
    RequestId, StopReason, TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{NewAccount, NewKey, Store};

/// Noon of 2026-11-15 UTC.
pub const NOON: UnixMillis = UnixMillis(1_794_744_000_000);

/// Texts that break SQL built by concatenation, or a database that is not UTF-8.
pub const HOSTILE_TEXTS: [&str; 9] = [
    "'; DROP TABLE ledger; --",
    "\"quoted\"",
    "back\\slash",
    "$1",
    "%_",
    "Büro Süd",
    "法律事務所 ⚖️",
    "\u{202e}right to left",
    "' OR ''='",
];

pub fn name(text: &str) -> AccountName {
    text.parse().unwrap()
}

pub fn new_account(text: &str) -> NewAccount {
    let limits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };
    NewAccount { name: name(text), limits, created_at: NOON }
}

pub async fn account(store: &Store, text: &str) -> Account {
    store.create_account(new_account(text)).await.unwrap()
}

pub fn new_key(account: Option<AccountId>) -> NewKey {
    let key = ApiKey::generate(&OsRandomness);
    NewKey {
        prefix: key.prefix(),
        hash: key.hash(),
        label: "a label".to_owned(),
        account,
        created_at: NOON,
        limits: KeyLimits::default(),
    }
}

pub async fn key(store: &Store, account: Option<AccountId>) -> Key {
    store.create_key(new_key(account)).await.unwrap()
}

/// An account with a key.
pub async fn billed_key(store: &Store) -> (AccountId, KeyId) {
    let account = account(store, "Hale & Ward").await.id;
    (account, key(store, Some(account)).await.id)
}

pub fn prices(input_nanos: i64, output_nanos: i64) -> Prices {
    Prices {
        input: TokenPrice::from_nanos_per_token(input_nanos),
        cached_input: TokenPrice::from_nanos_per_token(input_nanos),
        output: TokenPrice::from_nanos_per_token(output_nanos),
    }
}

pub fn request(number: usize) -> RequestId {
    RequestId::from_stored(format!("req_{number:06}"))
}

pub fn row(number: usize, (account, key): (AccountId, KeyId)) -> UsageRow {
    UsageRow {
        request_id: request(number),
        account,
        key,
        model: "smollm2-135m".to_owned(),
        input_tokens: 290,
        cached_input_tokens: 0,
        output_tokens: 64,
        prices: prices(100, 400),
        cost: Nanos(290 * 100 + 64 * 400),
        at: NOON,
        stop_reason: StopReason::Complete,
    }
}

/// The same prices with a discount for cached tokens.
pub fn discounted(prices: Prices, cached_nanos: i64) -> Prices {
    Prices { cached_input: TokenPrice::from_nanos_per_token(cached_nanos), ..prices }
}

/// The row with so many of its input tokens cached, and the resulting cost.
pub fn with_cached(mut row: UsageRow, cached_input_tokens: u32) -> UsageRow {
    row.cached_input_tokens = cached_input_tokens;
    row.cost = row.recomputed_cost().unwrap();
    row
}

/// The row with these token counts and the resulting cost.
pub fn with_tokens(mut row: UsageRow, input_tokens: u32, output_tokens: u32) -> UsageRow {
    (row.input_tokens, row.output_tokens) = (input_tokens, output_tokens);
    row.cost = row.recomputed_cost().unwrap();
    row
}

pub async fn all_ledger_rows(store: &Store) -> Vec<UsageRow> {
    store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap()
}

/// A statement that adds a row to the ledger without the store. The values are those of its columns up to `position`; the
/// hash is wrong.
pub fn insert_row(database: &impl TestDatabase, values: &str) -> String {
    format!("INSERT INTO ledger VALUES ({values}, {})", database.some_hash())
}
