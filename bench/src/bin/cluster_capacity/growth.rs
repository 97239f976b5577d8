//! Measures the size of each table's rows, and whether a request's database steps slow down as accounts and ledger rows grow. One
//! database grows from a thousand accounts and a hundred thousand rows in the month to the requested size.

use crate::accounts::{Accounts, MODEL, row};
use crate::postgres::Postgres;
use crate::settling::this_month;
use crate::{Options, sizes};
use chancery_bench::people::{create_person, sign_in};
use chancery_bench::portal::{HTML, Page, Server, figure};
use chancery_bench::watch::{Latencies, one_by_one};
use chancery_domain::{
    AccountId, Clock, Day, Fingerprint, IdempotencyKey, KeyPrefix, Month, Nanos, OsRandomness, Randomness,
    RequestId, Role, SystemClock, UnixMillis,
};
use chancery_store::{KeyClaim, Settlement, SpendingReservation, Store, StoredReply, UsageBy, UsageQuery};
use chancery_test_support::PostgresDatabase;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

const FEW_ACCOUNTS: i64 = 1_000;
const FEW_ROWS: i64 = 100_000;
/// Accounts used every day; the others were used once this month.
const BUSY_ACCOUNTS: i64 = 1_000;
const CALLS: usize = 1_000;
const PAGES: u32 = 30;
/// Tables that are small beside the others.
const STORED_REPLIES: usize = 5_000;
/// Replies created concurrently; more would wait too long for a connection of the store.
const STORED_AT_ONCE: usize = 16;
const SESSIONS: usize = 2_000;
const AUDIT_ROWS: i64 = 200_000;
/// A reply of three hundred tokens.
const STORED_TEXT_BYTES: usize = 1_200;
const HOUR_MS: i64 = 3_600_000;

pub async fn measure(options: &Options) {
    let bench_database = PostgresDatabase::create_at(&options.postgres, "bench");
    let url = bench_database.url();
    let store = Arc::new(Store::open(&url.parse().unwrap()).await.unwrap());
    store.partitions.create_month_partitions(SystemClock.now()).await.unwrap();
    let mut database = Postgres::connect(&url).await;
    let ruth = create_person(&store, "ruth@example.com", Role::Partner).await;
    let mut partner = sign_in(&store, &ruth).await;
    for _ in 0..SESSIONS {
        // Sessions per person are limited, so they are spread over many people.
        let person =
            create_person(&store, &format!("p{}@example.com", OsRandomness.next_u64()), Role::Consultant)
                .await;
        sign_in(&store, &person).await;
    }
    let mut columns = Vec::new();
    for (accounts, rows) in
        [(FEW_ACCOUNTS, FEW_ROWS), (options.accounts, FEW_ROWS), (options.accounts, options.rows)]
    {
        let accounts = Accounts::grown_to(&mut database, accounts).await;
        use_accounts(&mut database).await;
        fill_ledger(&mut database, rows).await;
        partner = sign_in(&store, &ruth).await;
        let steps = steps(&store, &mut database, accounts).await;
        let pages = pages(options, &url, &partner).await;
        columns.push((format!("{} accounts, {rows} rows", accounts.count), steps, pages));
    }
    drop(partner);
    print_steps(&columns);
    audit(&mut database).await;
    sizes::print_heading();
    for (what, table) in [
        ("ledger, this month", this_month().as_str()),
        ("sums by day", "daily_usage"),
        ("months of accounts", "billing_months"),
        ("accounts", "accounts"),
        ("keys", "api_keys"),
        ("kept replies of 1,200 bytes", "idempotency_keys"),
        ("sessions", "sessions"),
        ("people", "people"),
        ("audit", "audit_rows"),
    ] {
        sizes::print(&mut database, what, table).await;
    }
    store.close().await;
    drop(database);
}

/// Adds one row of daily sums per account on the first day of the month, and one per day so far for busy accounts.
async fn use_accounts(database: &mut Postgres) {
    let month = Month::containing(SystemClock.now());
    let (first_day, today) = (month.first_day().0, Day::containing(SystemClock.now()).0);
    database
        .run(format!(
            "SET session_replication_role = replica; \
             INSERT INTO daily_usage SELECT id, {first_day}, id, '{MODEL}', 100, 100, 400, 10, 2900, 0, 640, 546000 FROM accounts \
                 ON CONFLICT DO NOTHING; \
             INSERT INTO daily_usage SELECT id, day, id, '{MODEL}', 100, 100, 400, 10, 2900, 0, 640, 546000 \
                 FROM accounts, generate_series({first_day} + 1, {today}) AS day WHERE id <= {BUSY_ACCOUNTS} \
                 ON CONFLICT DO NOTHING; \
             INSERT INTO billing_months SELECT id, month_of_day({first_day}) FROM accounts ON CONFLICT DO NOTHING; \
             SET session_replication_role = origin; \
             UPDATE accounts SET spend_per_month_nanos = 1000000000000000 WHERE id <= {BUSY_ACCOUNTS} \
                 AND spend_per_month_nanos IS NULL; \
             VACUUM (ANALYZE) daily_usage; VACUUM (ANALYZE) billing_months; VACUUM (ANALYZE) accounts"
        ))
        .await;
}

/// Adds rows of this month, as wide as settled ones. They have no valid hash chain, but nothing measured here reads it.
async fn fill_ledger(database: &mut Postgres, rows: i64) {
    let there = database.number("SELECT COUNT(*) FROM ledger").await;
    let beginning = RequestId::prefix_at(SystemClock.now());
    let (now, writer) = (SystemClock.now().0, (OsRandomness.next_u64() >> 1).cast_signed());
    database
        .run(format!(
            "SET session_replication_role = replica; \
             INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, output_tokens, \
                 input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, stop_reason, writer_id, position, hash) \
             SELECT '{beginning}' || lpad(to_hex(i), 16, '0'), 1 + i % {FEW_ACCOUNTS}, 1 + i % {FEW_ACCOUNTS}, '{MODEL}', \
                 290, 0, 64, 100, 100, 400, 54600, {now}, 'complete', {writer}, i, sha256(i::text::bytea) \
             FROM generate_series({there} + 1, {rows}) AS i; \
             SET session_replication_role = origin; VACUUM (ANALYZE) ledger"
        ))
        .await;
}

/// Times each database step of a request as a caller sees it, one at a time.
async fn steps(
    store: &Arc<Store>,
    database: &mut Postgres,
    accounts: Accounts,
) -> Vec<(&'static str, Latencies)> {
    let query = format!(
        "SELECT prefix FROM api_keys WHERE id IN (SELECT 1 + floor(random() * {})::bigint FROM generate_series(1, {CALLS}))",
        accounts.count
    );
    let prefixes = database.texts(query).await;
    let mut next = prefixes.iter().cycle();
    let looked_up = one_by_one(CALLS, || {
        let prefix = KeyPrefix::from_stored(next.next().unwrap().clone());
        async move { drop(store.keys.key_by_prefix(&prefix).await.unwrap().unwrap()) }
    })
    .await;
    let busy = Accounts { count: BUSY_ACCOUNTS };
    let month = Month::containing(SystemClock.now());
    let summed = one_by_one(CALLS, || {
        let query = UsageQuery {
            account: Some(busy.any()),
            from: Some(month.first_day()),
            to: Some(month.last_day()),
            by: UsageBy::Day,
        };
        async move { drop(store.ledger.usage(query).await.unwrap()) }
    })
    .await;
    let reserved = one_by_one(CALLS, || async {
        let (now, account) = (SystemClock.now(), busy.any());
        let reservation = SpendingReservation {
            request_id: RequestId::new(now, &OsRandomness),
            account,
            key: Accounts::key_of(account),
            amount: Nanos(54_600),
            at: now,
            now,
        };
        let request = reservation.request_id.clone();
        store.spending.reserve_spending(reservation).await.unwrap();
        store.spending.release_spending(&request).await.unwrap();
    })
    .await;
    let settled = one_by_one(CALLS, || async {
        store.ledger.settle(row(accounts.any(), SystemClock.now()).into()).await.unwrap();
    })
    .await;
    let stored = store_replies(store, busy).await;
    let mut next = stored.iter().cycle();
    let replayed = one_by_one(CALLS, || {
        let (account, key) = next.next().unwrap().clone();
        async move {
            drop(
                store
                    .idempotency
                    .idempotency_record(account, &key, SystemClock.now())
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
    })
    .await;
    vec![
        ("a key is looked up", looked_up),
        ("an account's month is summed by day", summed),
        ("spending is set aside and given back (two commits and more)", reserved),
        ("a row is settled, alone in its commit", settled),
        ("a kept reply is found, with its ledger row", replayed),
    ]
}

/// Stores replies under idempotency keys, as finished requests do.
async fn store_replies(store: &Arc<Store>, accounts: Accounts) -> Vec<(AccountId, IdempotencyKey)> {
    let mut running = tokio::task::JoinSet::new();
    let slots = Arc::new(Semaphore::new(STORED_AT_ONCE));
    for _ in 0..STORED_REPLIES {
        let (store, slots) = (Arc::clone(store), Arc::clone(&slots));
        running.spawn(async move {
            let _slot = slots.acquire().await.unwrap();
            let (account, now) = (accounts.any(), SystemClock.now());
            let random: [u64; 2] = [OsRandomness.next_u64(), OsRandomness.next_u64()];
            let key: IdempotencyKey = format!("{:016x}-{:019x}", random[0], random[1]).parse().unwrap();
            let row = row(account, now);
            let claim = KeyClaim {
                account,
                key: key.clone(),
                fingerprint: Fingerprint([7; 32]),
                request_id: row.request_id.clone(),
                now,
                expires_at: UnixMillis(now.0 + HOUR_MS),
            };
            store.idempotency.claim_key(&claim).await.unwrap();
            let stored = StoredReply {
                key: key.clone(),
                reasoning_text: String::new(),
                output_text: random_text(),
                logprobs: None,
                reasoning_tokens: 0,
                expires_at: claim.expires_at,
            };
            store
                .ledger
                .settle(Settlement { row, is_reserved: false, stored_reply: Some(stored) })
                .await
                .unwrap();
            (account, key)
        });
    }
    running.join_all().await
}

/// Returns text that does not compress like repetitive text would.
fn random_text() -> String {
    let mut text = String::with_capacity(STORED_TEXT_BYTES + 16);
    while text.len() < STORED_TEXT_BYTES {
        text += &format!("{:x} ", OsRandomness.next_u64());
    }
    text
}

async fn pages(
    options: &Options,
    url: &str,
    partner: &chancery_bench::people::SignedIn,
) -> Vec<(&'static str, Duration)> {
    let server = Server::chancery(&options.chancery, url).await;
    let month = Month::containing(SystemClock.now());
    let mut figures = Vec::new();
    for (what, path) in [
        ("page: usage of one account", format!("/usage?account=1&month={month}")),
        ("page: accounts", "/accounts".to_owned()),
        ("page: usage of all accounts", format!("/usage?month={month}")),
        ("page: invoices", "/invoices".to_owned()),
    ] {
        let page = Page { what, path, session: partner.clone(), accept: HTML };
        figures.push((what, figure(&server, &page, PAGES).await.median));
    }
    figures
}

type Column = (String, Vec<(&'static str, Latencies)>, Vec<(&'static str, Duration)>);

fn print_steps(columns: &[Column]) {
    println!("\n## What grows with accounts and rows\n\nMedian ms, one at a time.\n");
    let names: Vec<&str> = columns.iter().map(|(name, ..)| name.as_str()).collect();
    println!("| | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    let (_, steps, pages) = &columns[0];
    for (index, (what, _)) in steps.iter().enumerate() {
        let medians: Vec<String> = columns
            .iter()
            .map(|(_, steps, _)| format!("{:.2}", steps[index].1.us(50) as f64 / 1e3))
            .collect();
        println!("| {what} | {} |", medians.join(" | "));
    }
    for (index, (what, _)) in pages.iter().enumerate() {
        let medians: Vec<String> =
            columns.iter().map(|(.., pages)| format!("{:.1}", pages[index].1.as_secs_f64() * 1e3)).collect();
        println!("| {what} | {} |", medians.join(" | "));
    }
}

/// Adds decisions as wide as those for reading records.
async fn audit(database: &mut Postgres) {
    let (now, writer) = (SystemClock.now().0, (OsRandomness.next_u64() >> 1).cast_signed());
    let beginning = RequestId::prefix_at(SystemClock.now());
    database
        .run(format!(
            "INSERT INTO audit_rows (at_ms, principal_kind, person_id, action, client_id, request_id, decision, writer_id, position, hash) \
             SELECT {now} + i, 'consultant', 1 + i % 50, 'read_client', 1001 + i * 7919 % 100000, \
                 '{beginning}' || lpad(to_hex(i), 16, '0'), 'allowed', {writer}, i, sha256(i::text::bytea) \
             FROM generate_series(1, {AUDIT_ROWS}) AS i"
        ))
        .await;
}
