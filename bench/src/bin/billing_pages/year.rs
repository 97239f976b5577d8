//! A year of requests: four accounts with two keys each, three models, and prices that change every fifteen days.

use chancery_bench::accounts::{create_account, create_key, set_billing_address};
use chancery_bench::people::{SignedIn, create_person, sign_in};
use chancery_domain::{AccountId, Clock, Day, KeyId, Month, RateLimits, Role, SystemClock};
use chancery_store::Store;
use chancery_test_support::raw_sql;
use std::sync::Arc;

const ACCOUNTS: u64 = 4;
const KEYS: u64 = 2;
const DAYS: i32 = 365;

pub struct Year {
    store: Arc<Store>,
    pub partner: SignedIn,
    accounts: Vec<AccountId>,
    /// The first day of the year that ends yesterday.
    first_day: Day,
}

impl Year {
    /// Creates this many ledger rows, spread over all days.
    pub async fn filled(url: &str, rows: u64) -> Self {
        let store = Arc::new(Store::open(&url.parse().unwrap()).await.unwrap());
        let ruth = create_person(&store, "ruth@example.com", Role::Partner).await;
        let partner = sign_in(&store, &ruth).await;
        let (mut accounts, mut keys) = (Vec::new(), Vec::new());
        for number in 0..ACCOUNTS {
            let limits = RateLimits { requests_per_min: 6_000, tokens_per_min: 10_000_000 };
            let account = create_account(&store, &format!("Account {number}"), limits).await;
            set_billing_address(&store, account, "210 Pier Road\nSalem, MA 01970").await;
            accounts.push(account);
            for label in 0..KEYS {
                keys.push(create_key(&store, account, &format!("Key {label}")).await.0);
            }
        }
        let first_day = Day(Day::containing(SystemClock.now()).0 - DAYS);
        fill(url, rows, first_day, keys[0]).await;
        Self { store, partner, accounts, first_day }
    }

    pub fn first_account(&self) -> AccountId {
        self.accounts[0]
    }

    /// A full month in the middle that is not invoiced.
    pub fn shown_month(&self) -> Month {
        (0..6).fold(Month::containing(self.first_day.start()), |month, _| month.next())
    }

    pub fn year_of_issue(&self) -> i32 {
        Month::containing(SystemClock.now()).year()
    }

    /// Paths that issue the first full month of every account.
    pub fn months_to_issue(&self) -> Vec<String> {
        let month = Month::containing(self.first_day.start()).next();
        let path = |account| format!("/invoices/drafts/{account}/{month}/issue");
        self.accounts.iter().map(path).collect()
    }

    pub async fn close(&self) {
        self.store.close().await;
    }
}

/// Inserts by SQL, because settling ten million rows one by one would take longer than all measurements. Daily sums are computed
/// as in the migration. The rows have no valid hash chain, but no page reads it.
async fn fill(url: &str, rows: u64, first_day: Day, first_key: KeyId) {
    let (series, id, no_hash) = match url.starts_with("sqlite:") {
        true => (
            format!(
                "(WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows}) SELECT i FROM n)"
            ),
            "printf('req_%026d', s.i)",
            "zeroblob(32)",
        ),
        false => (
            format!("generate_series(0, {rows}::bigint - 1)"),
            "'req_' || lpad(s.i::text, 26, '0')",
            "decode(repeat('00', 32), 'hex')",
        ),
    };
    let (first_ms, span_ms) = (first_day.start().0, i64::from(DAYS) * 86_400_000);
    let first_key = first_key.0;
    let keys = ACCOUNTS * KEYS;
    let ledger = format!(
        "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, output_tokens, \
         input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, stop_reason, writer_id, position, hash) \
         SELECT {id}, k.account_id, k.id, \
         CASE s.i / {keys} % 3 WHEN 0 THEN 'smollm2-135m' WHEN 1 THEN 'qwen2.5-7b' ELSE 'llama-3.3-70b' END, \
         200 + s.i % 97, 0, 40 + s.i % 31, p.input, p.input, p.output, (200 + s.i % 97) * p.input + (40 + s.i % 31) * p.output, \
         {first_ms} + s.i * ({span_ms} / {rows}), 'complete', 1, s.i, {no_hash} \
         FROM {series} AS s{columns} JOIN api_keys k ON k.id = {first_key} + s.i % {keys} \
         JOIN (SELECT 0 AS turn, 100 AS input, 400 AS output UNION ALL SELECT 1, 101, 404) p \
         ON p.turn = s.i * ({span_ms} / {rows}) / (15 * 86400000) % 2",
        columns = if url.starts_with("sqlite:") { "" } else { " (i)" },
    );
    let sums = "INSERT INTO daily_usage SELECT account_id, at_ms / 86400000, key_id, model, input_price_nanos, \
        cached_price_nanos, output_price_nanos, \
        COUNT(*), SUM(input_tokens), SUM(cached_input_tokens), SUM(output_tokens), SUM(cost_nanos) FROM ledger \
        GROUP BY account_id, at_ms / 86400000, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos";
    raw_sql(url, &ledger).await.unwrap();
    raw_sql(url, sums).await.unwrap();
    if !url.starts_with("sqlite:") {
        raw_sql(url, "ANALYZE").await.unwrap();
    }
}
