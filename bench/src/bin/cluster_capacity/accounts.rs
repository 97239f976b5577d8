//! Accounts with one key each, created by SQL: creating a million one by one would take longer than all measurements.

use crate::postgres::Postgres;
use chancery_domain::{
    AccountId, Clock, KeyId, Nanos, OsRandomness, Prices, Randomness, RequestId, StopReason, SystemClock,
    TokenPrice, UnixMillis, UsageRow,
};

pub const MODEL: &str = "smollm2-135m";

/// Accounts with consecutive ids, whose keys have consecutive ids too.
#[derive(Clone, Copy)]
pub struct Accounts {
    pub count: i64,
}

impl Accounts {
    /// Creates the missing accounts. In a database where nothing else creates accounts, both ids count up from 1.
    pub async fn grown_to(database: &mut Postgres, count: i64) -> Self {
        let there = database.number("SELECT COUNT(*) FROM accounts").await;
        let now = SystemClock.now().0;
        database
            .run(format!(
                "INSERT INTO accounts (name, requests_per_min, tokens_per_min, created_at_ms) \
                 SELECT 'Account number ' || lpad(i::text, 9, '0'), 4294967295, 4294967295, {now} \
                 FROM generate_series({there} + 1, {count}) AS i; \
                 INSERT INTO api_keys (prefix, hash, label, account_id, created_at_ms) \
                 SELECT 'ck_' || substr(md5(a.id::text), 1, 3) || lpad(to_hex(a.id), 5, '0'), sha256(a.id::text::bytea), \
                     'backend', a.id, {now} FROM accounts a WHERE a.id > {there} ORDER BY a.id; \
                 VACUUM (ANALYZE) accounts; VACUUM (ANALYZE) api_keys"
            ))
            .await;
        let last = database.number("SELECT MAX(id) FROM api_keys WHERE account_id = id").await;
        assert_eq!(last, count, "each account's key must have the account's number");
        Self { count }
    }

    /// Returns a random account.
    pub fn any(self) -> AccountId {
        AccountId(1 + (OsRandomness.next_u64() % self.count.unsigned_abs()).cast_signed())
    }

    pub fn key_of(account: AccountId) -> KeyId {
        KeyId(account.0)
    }
}

/// The usage of a short letter.
pub fn row(account: AccountId, at: UnixMillis) -> UsageRow {
    let (input_tokens, output_tokens) = (290, 64);
    let price = TokenPrice::from_nanos_per_token;
    UsageRow {
        request_id: RequestId::new(at, &OsRandomness),
        account,
        key: Accounts::key_of(account),
        model: MODEL.to_owned(),
        input_tokens,
        cached_input_tokens: 0,
        output_tokens,
        prices: Prices { input: price(100), cached_input: price(100), output: price(400) },
        cost: Nanos(290 * 100 + 64 * 400),
        at,
        stop_reason: StopReason::Complete,
    }
}
