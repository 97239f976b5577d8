//! Tests specific to PostgreSQL: sessions that end, unreachable or unresponsive servers, and server settings.

use crate::billing::{issue_new, record_million_tokens};
use crate::databases::{PostgresDatabase, TestDatabase};
use crate::firm::{after_s, ask, firm_permit, new_client, note, people, search_for};
use crate::samples::{NOON, account, all_ledger_rows, billed_key, key, new_account, request, row};
use chancery_domain::{
    ContactDetails, Fingerprint, IdempotencyKey, Month, Nanos, OsRandomness, Principal, RequestId,
    UnixMillis, UsageRow,
};
use chancery_policy::NewClientResource;
use chancery_store::{
    AccountError, CapChange, ClientOrder, ClientQuery, DatabaseUrl, DbError, KeyClaim, LedgerError,
    LimitsChange, MonthlyUsageQuery, NewClient, OpenError, ReserveOutcome, Settlement, SpendingReservation,
    Store, StoredReply, UsageBy, UsageQuery,
};
use chancery_test_support::RawConnection;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server may take to end the sessions of a closed store.
const SESSIONS_END_TIMEOUT: Duration = Duration::from_secs(30);

const EVERY_DAY: UsageQuery = UsageQuery { account: None, from: None, to: None, by: UsageBy::Day };

async fn open_error(url: &str) -> OpenError {
    match Store::open(&url.parse().unwrap()).await {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error,
    }
}

/// Ends every session of the store, as a restart of the server would.
async fn terminate_backends(database: &PostgresDatabase) {
    database
        .raw(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'chancery'",
        )
        .await
        .unwrap();
}

/// Waits until this many statements of the store are blocked by a lock.
async fn wait_for_blocked_statements(database: &PostgresDatabase, statements: i64) {
    let mut connection = database.connect().await;
    loop {
        let waiting = connection.number(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'chancery' AND wait_event_type = 'Lock'",
        );
        if waiting.await >= statements {
            return;
        }
    }
}

async fn rows_by_partition(database: &PostgresDatabase) -> Vec<(String, i64)> {
    let mut connection = database.connect().await;
    let query = "SELECT tableoid::regclass::text, COUNT(*) FROM ledger GROUP BY 1 ORDER BY 1";
    let rows = connection.rows(query).await.into_iter();
    rows.map(|[partition, rows]| (partition, rows.parse().unwrap())).collect()
}

/// The URL of a proxy that breaks the connection on which a statement with this text is first sent.
fn via_breaking_proxy(database: &PostgresDatabase, statement: &'static str) -> DatabaseUrl {
    let url = database.url_text();
    let (user, location) = url.trim_start_matches("postgres://").split_once('@').unwrap();
    let (server, name) = location.split_once('/').unwrap();
    let wire = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let through = format!("postgres://{user}@{}/{name}", wire.local_addr().unwrap());
    let (server, is_broken) = (server.to_owned(), Arc::new(AtomicBool::new(false)));
    std::thread::spawn(move || {
        for client in wire.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (mut responses, mut client_writer) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut responses, &mut client_writer));
            let is_broken = Arc::clone(&is_broken);
            std::thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while let Ok(length @ 1..) = client.read(&mut bytes) {
                    let sent = &bytes[..length];
                    let is_it = sent.windows(statement.len()).any(|part| part == statement.as_bytes());
                    if is_it && !is_broken.swap(true, Ordering::Relaxed) {
                        break;
                    }
                    server.write_all(sent).unwrap();
                }
                // The other side may have closed either one first.
                let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
            });
        }
    });
    through.parse().unwrap()
}

#[tokio::test]
async fn lost_connections_are_replaced_without_losing_rows() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for number in 0..10 {
        store.ledger.settle(row(number, billed_key).into()).await.unwrap();
        terminate_backends(&database).await;
        store.health.ping().await.unwrap();
    }
    assert_eq!(all_ledger_rows(&store).await.len(), 10);
}

#[tokio::test]
async fn connection_lost_before_first_row_of_month_loses_nothing() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let later = Month::containing(NOON).next().next().next().first_day().start();
    for at in [NOON, later] {
        let row = UsageRow { request_id: RequestId::new(at, &OsRandomness), at, ..row(1, billed_key) };
        store.ledger.settle(row.into()).await.unwrap();
        terminate_backends(&database).await;
    }
    assert_eq!(all_ledger_rows(&store).await.len(), 2);
}

#[tokio::test]
async fn reservations_waiting_on_a_cap_do_not_block_key_lookup() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let key = key(&store, None).await;
    let mut accounts = Vec::new();
    for number in 0..20 {
        let name = format!("Account {number}");
        accounts.push(account(&store, &name).await.id);
        let spend_per_month = CapChange::Set(Nanos(1_000));
        let change = LimitsChange { spend_per_month, ..LimitsChange::default() };
        store.set_limits(&name.parse().unwrap(), change).await.unwrap();
    }
    // Another node holds the lock on the accounts.
    let mut other = database.connect().await;
    other.run("BEGIN; SELECT 1 FROM accounts FOR UPDATE").await.unwrap();
    let mut reserving = tokio::task::JoinSet::new();
    for number in 0..60 {
        let (store, account) = (Arc::clone(&store), accounts[number % accounts.len()]);
        let reservation = SpendingReservation {
            request_id: request(number),
            account,
            key: key.id,
            amount: Nanos(1),
            at: NOON,
            now: NOON,
        };
        reserving.spawn(async move { store.spending.reserve_spending(reservation).await });
    }
    wait_for_blocked_statements(&database, 8).await;
    let looked_up = async {
        for _ in 0..20 {
            assert!(store.keys.key_by_prefix(&key.prefix).await.unwrap().is_some());
        }
    };
    tokio::time::timeout(Duration::from_secs(2), looked_up).await.unwrap();
    other.run("ROLLBACK").await.unwrap();
    let outcomes = reserving.join_all().await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(ReserveOutcome::Reserved))), "{outcomes:?}");
}

#[tokio::test]
async fn commit_with_lost_response_bills_once() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut settling = tokio::task::JoinSet::new();
    for number in 0..2000 {
        let store = Arc::clone(&store);
        settling.spawn(async move { (number, store.ledger.settle(row(number, billed_key).into()).await) });
    }
    for _ in 0..10 {
        terminate_backends(&database).await;
    }
    let settled: Vec<usize> = settling
        .join_all()
        .await
        .into_iter()
        .filter_map(|(number, outcome)| match outcome {
            Ok(()) => Some(number),
            Err(LedgerError::Database(DbError::Unavailable(_))) => None,
            Err(error) => panic!("{error:?}"),
        })
        .collect();
    let stored = all_ledger_rows(&store).await;
    for number in settled {
        let row: UsageRow = row(number, billed_key);
        assert_eq!(stored.iter().filter(|stored| **stored == row).count(), 1, "{number}");
    }
}

#[tokio::test]
async fn synchronous_commit_off_is_overridden() {
    let database = Arc::new(PostgresDatabase::create());
    database.raw(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name())).await.unwrap();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    // The check runs inside the transactions that must be durable.
    database
            .raw(
                "CREATE FUNCTION check_durable() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF current_setting('synchronous_commit') = 'off' THEN RAISE EXCEPTION 'not durable'; END IF; \
                 RETURN NEW; END; $$; \
                 CREATE TRIGGER check_ledger BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION check_durable(); \
                 CREATE TRIGGER check_accounts BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION check_durable()",
            )
            .await
            .unwrap();
    store.ledger.settle(row(1, billed_key).into()).await.unwrap();
    account(&store, "Another").await;
}

#[tokio::test]
async fn read_only_server_is_reported() {
    let database = Arc::new(PostgresDatabase::create());
    database.open().await.close().await;
    let read_only = format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name());
    database.raw(&read_only).await.unwrap();
    let store = database.open().await;
    assert!(store.account_lookup.list_accounts().await.unwrap().is_empty());
    let error = store.create_account(new_account("Hale & Ward")).await.unwrap_err();
    assert!(matches!(error, AccountError::Database(DbError::ReadOnly(_))), "{error:?}");
}

#[tokio::test]
async fn missing_privileges_are_reported() {
    let database = Arc::new(PostgresDatabase::create());
    let role = format!("{}_guest", database.name());
    database.raw(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let (_, host) = database.url_text().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let error = open_error(&format!("postgres://{role}@{host}")).await;
    database.raw(&format!("DROP ROLE {role}")).await.unwrap();
    assert!(error.to_string().contains("create and write tables"), "{error:?}");
}

#[tokio::test]
async fn the_ledger_cannot_be_truncated() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    store.ledger.settle(row(1, billed_key(&store).await).into()).await.unwrap();
    store.partitions.create_month_partitions(NOON).await.unwrap();
    database.raw("SELECT * FROM ledger_default, ledger_2026_12").await.unwrap();
    for sql in ["TRUNCATE ledger", "TRUNCATE ledger_default", "TRUNCATE ledger_2026_12"] {
        assert!(database.raw(sql).await.is_err(), "{sql}");
    }
    assert!(database.raw("TRUNCATE accounts CASCADE").await.is_err());
    assert_eq!(all_ledger_rows(&store).await.len(), 1);
}

#[tokio::test]
async fn rows_go_to_their_months_partition_and_next_exists() {
    let database = Arc::new(PostgresDatabase::create());
    let (store, other) = (database.open().await, database.open().await);
    let billed_key = billed_key(&store).await;
    let month = Month::containing(NOON);
    let (first, last) = (month.first_day().start(), month.last_day().end());
    let moments = [first.0 - 1, first.0, NOON.0, last.0 - 1, last.0].map(UnixMillis);
    let mut settling = tokio::task::JoinSet::new();
    for (index, at) in moments.into_iter().enumerate() {
        // Two nodes find at the same time that a partition is missing.
        for store in [Arc::clone(&store), Arc::clone(&other)] {
            let request_id = RequestId::new(at, &OsRandomness);
            let row = UsageRow { request_id, at, ..row(index, billed_key) };
            settling.spawn(async move { store.ledger.settle(row.into()).await });
        }
    }
    assert!(settling.join_all().await.iter().all(Result::is_ok));
    let expected = [("ledger_2026_10", 2), ("ledger_2026_11", 6), ("ledger_2026_12", 2)];
    assert_eq!(rows_by_partition(&database).await, expected.map(|(name, rows)| (name.to_owned(), rows)));
    // Both nodes create the next months' partitions at the same time.
    let (one, two) = tokio::join!(
        store.partitions.create_month_partitions(last),
        other.partitions.create_month_partitions(last)
    );
    one.and(two).unwrap();
    database.raw("SELECT * FROM ledger_2027_01").await.unwrap();
}

#[tokio::test]
async fn rows_without_partition_go_to_default_partition() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    database.raw("CREATE TABLE ledger_2026_11 (theirs INTEGER)").await.unwrap();
    let request_id = RequestId::new(NOON, &OsRandomness);
    let row = UsageRow { request_id, ..row(1, billed_key) };
    store.ledger.settle(row.clone().into()).await.unwrap();
    assert_eq!(all_ledger_rows(&store).await, [row]);
    // A later process finds the partition's rows in the default partition, and leaves them there when it settles.
    database.raw("DROP TABLE ledger_2026_11").await.unwrap();
    let later = database.open().await;
    let request_id = RequestId::new(NOON, &OsRandomness);
    later.ledger.settle(UsageRow { request_id, ..self::row(2, billed_key) }.into()).await.unwrap();
    assert_eq!(rows_by_partition(&database).await, [("ledger_default".to_owned(), 2)]);
    let before = all_ledger_rows(&store).await;
    // Its maintenance moves them, and rows still cannot be deleted afterwards.
    later.partitions.create_month_partitions(NOON).await.unwrap();
    assert_eq!(rows_by_partition(&database).await, [("ledger_2026_11".to_owned(), 2)]);
    assert_eq!(all_ledger_rows(&store).await, before);
    let request_id = RequestId::from_stored("no time at all".to_owned());
    later.ledger.settle(UsageRow { request_id, ..self::row(3, billed_key) }.into()).await.unwrap();
    for sql in ["DELETE FROM ledger_default", "DELETE FROM ledger_2026_11", "DELETE FROM ledger"] {
        assert!(database.raw(sql).await.is_err(), "{sql}");
    }
    assert_eq!(all_ledger_rows(&store).await.len(), 3);
}

#[tokio::test]
async fn failed_partition_is_created_on_retry() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    database.raw("ALTER FUNCTION create_ledger_partition RENAME TO away").await.unwrap();
    let row = UsageRow { request_id: RequestId::new(NOON, &OsRandomness), ..row(1, billed_key) };
    store.ledger.settle(row.into()).await.unwrap();
    let error = store.partitions.create_month_partitions(NOON).await.unwrap_err();
    assert!(error.to_string().contains("2026-1"), "{error}");
    database.raw("ALTER FUNCTION away RENAME TO create_ledger_partition").await.unwrap();
    store.partitions.create_month_partitions(UnixMillis(NOON.0 + 1_000_000)).await.unwrap();
    assert_eq!(rows_by_partition(&database).await, [("ledger_2026_11".to_owned(), 1)]);
    database.raw("SELECT * FROM ledger_2026_12").await.unwrap();
}

#[tokio::test]
async fn statement_blocked_by_lock_times_out_with_cause() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    account(&store, "Hale & Ward").await;
    let mut other = database.connect().await;
    other.run("BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let error = store.account_lookup.list_accounts().await.unwrap_err();
    assert!(matches!(&error, DbError::Unavailable(why) if why.contains("took more than 5 s")), "{error}");
    drop(other);
    store.account_lookup.list_accounts().await.unwrap();
}

#[tokio::test]
async fn report_queries_have_longer_timeout() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    store.ledger.settle(row(1, billed_key(&store).await).into()).await.unwrap();
    let mut other = database.connect().await;
    other.run("BEGIN; LOCK TABLE accounts, daily_usage, ledger IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let sums = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ledger.usage(EVERY_DAY).await }
    });
    let page = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ledger_chains.ledger_rows(None, 10).await }
    });
    wait_for_blocked_statements(&database, 2).await;
    // This one times out after five seconds, the longest that the reports could wait without their longer timeout.
    store.account_lookup.list_accounts().await.unwrap_err();
    other.run("ROLLBACK").await.unwrap();
    assert_eq!(sums.await.unwrap().unwrap().len(), 1);
    assert_eq!(page.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn long_reports_do_not_block_other_reads() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    account(&store, "Hale & Ward").await;
    let mut other = database.connect().await;
    other.run("BEGIN; LOCK TABLE daily_usage IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut sums = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let store = Arc::clone(&store);
        sums.spawn(async move { store.ledger.usage(EVERY_DAY).await });
    }
    wait_for_blocked_statements(&database, 2).await;
    // These have their own connections, and closing does not wait until the sums end.
    for _ in 0..20 {
        store.account_lookup.list_accounts().await.unwrap();
    }
    assert!(sums.try_join_next().is_none(), "the sums still wait");
    tokio::time::timeout(Duration::from_secs(60), store.close()).await.unwrap();
    drop(other);
}

#[tokio::test]
async fn connection_lost_during_duplicate_check_is_replaced() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let row = row(1, billed_key(&store).await);
    store.ledger.settle(row.clone().into()).await.unwrap();
    let comparing = "SELECT * FROM ledger WHERE request_id = $1";
    let store = Store::open(&via_breaking_proxy(&database, comparing)).await.unwrap();
    store.ledger.settle(row.clone().into()).await.unwrap();
    store.ledger.settle(row.into()).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn unreachable_server_error_hides_password() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = open_error(&format!("postgres://ann:hunter2@127.0.0.1:{port}/firm")).await;
    assert!(matches!(error, OpenError::Database(DbError::Unavailable(_))), "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(text.contains(&format!("127.0.0.1:{port}")) && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn unresponsive_server_times_out() {
    // Accepts connections into its backlog and never responds.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = open_error(&format!("postgres://ann@127.0.0.1:{port}/firm")).await;
    assert!(matches!(error, OpenError::Database(DbError::Unavailable(_))), "{error:?}");
}

#[tokio::test]
async fn missing_database_error_suggests_createdb() {
    let database = Arc::new(PostgresDatabase::create());
    let error = open_error(&format!("{}_missing", database.url_text())).await;
    let text = error.to_string();
    assert!(text.contains("_missing") && text.contains("createdb"), "{text}");
}

#[tokio::test]
async fn issue_is_not_blocked_by_vacuum_and_settlements() {
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    let (mut vacuuming, mut settling) = (database.connect().await, database.connect().await);
    vacuuming.run("BEGIN; LOCK TABLE daily_usage IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    // Another node's slow settlement into the next month.
    let settle = "BEGIN; INSERT INTO daily_usage \
        SELECT account_id, day + 31, key_id, model, 1, 1, 1, 1, 1, 0, 1, 2 FROM daily_usage";
    settling.run(settle).await.unwrap();
    issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await;
}

/// The server publishes the read statistics of a session when it ends.
async fn wait_for_session_end(connection: &mut RawConnection) {
    let ended = async {
        loop {
            let sessions = connection.number(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'chancery'",
            );
            if sessions.await == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(SESSIONS_END_TIMEOUT, ended).await;
    assert!(ended.is_ok(), "the store was closed and its sessions go on");
}

/// Rows of the `clients` table and its indexes that the server has read so far.
async fn client_rows_read(database: &PostgresDatabase) -> i64 {
    let mut connection = database.connect().await;
    wait_for_session_end(&mut connection).await;
    let read = connection.number(
        "SELECT CAST((SELECT SUM(seq_tup_read) FROM pg_stat_user_tables WHERE relname = 'clients') \
         + (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'clients') AS BIGINT)",
    );
    read.await
}

#[tokio::test]
async fn client_list_page_reads_no_full_table() {
    const CLIENTS: usize = 4000;
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let people = people(&store).await;
    let owner = |number: usize| if number.is_multiple_of(2) { people.maya.id } else { people.tom.id };
    let new = (0..CLIENTS).map(|number| {
        let at = after_s((number * 7919 % CLIENTS) as i64);
        let entries = vec![note(owner(number), at, "A note")];
        // Wide rows, because the planner scans a small table in full.
        let details =
            ContactDetails { address: "x".repeat(400).parse().unwrap(), ..ContactDetails::default() };
        let new =
            NewClient { details, entries, ..new_client(&format!("Client {}", number * 7919 % CLIENTS)) };
        (ask(Principal::Operator, NewClientResource(owner(number))).unwrap(), new)
    });
    store.client_imports.import_clients(new.collect(), &|_| {}).await.unwrap();
    store.close().await;
    database.raw("ANALYZE").await.unwrap();
    let orders = [
        ClientOrder::RecentFirst,
        ClientOrder::OldestFirst,
        ClientOrder::Name,
        ClientOrder::NameDescending,
        ClientOrder::Id,
        ClientOrder::IdDescending,
        ClientOrder::Owner,
        ClientOrder::OwnerDescending,
    ];
    for order in orders {
        let before = client_rows_read(&database).await;
        let store = database.open().await;
        for person in [&people.maya, &people.ruth] {
            let page = store
                .clients
                .list_clients(firm_permit(person), &ClientQuery { order, ..search_for("") })
                .await
                .unwrap();
            assert_eq!(page.lines.len(), 25);
        }
        store.close().await;
        let read = client_rows_read(&database).await - before;
        // Each row is read from the index and from the table. Planning reads a few rows more.
        assert!(read <= 2 * (2 * 25 + 50), "{order:?}: {read} rows for two pages");
    }
}

/// Sequential scans of the sums by day, their rows fetched by an index, and all scans of the ledger.
async fn read_stats(database: &PostgresDatabase) -> (i64, i64, i64) {
    let mut connection = database.connect().await;
    wait_for_session_end(&mut connection).await;
    let stats = connection.rows(
        "SELECT CAST(SUM(seq_scan) FILTER (WHERE relname = 'daily_usage') AS BIGINT), \
         CAST(SUM(idx_tup_fetch) FILTER (WHERE relname = 'daily_usage') AS BIGINT), \
         CAST(SUM(seq_scan + COALESCE(idx_scan, 0)) FILTER (WHERE relname LIKE 'ledger%') AS BIGINT) \
         FROM pg_stat_user_tables",
    );
    let [[scans, fetched, ledger_scans]] = stats.await.try_into().unwrap();
    (scans.parse().unwrap(), fetched.parse().unwrap(), ledger_scans.parse().unwrap())
}

#[tokio::test]
async fn monthly_usage_reads_only_its_index_range() {
    const ACCOUNTS: usize = 20;
    const DAYS: i64 = 731;
    /// Groupings of the month, and the previous month.
    const QUERIES: i64 = 5;
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let mut one = None;
    for number in 0..ACCOUNTS {
        let account = account(&store, &format!("Account {number}")).await.id;
        key(&store, Some(account)).await;
        one = Some(account);
    }
    let month = Month::containing(NOON);
    let last_day = month.last_day().0;
    store.close().await;
    database
        .raw(&format!(
            "INSERT INTO daily_usage SELECT k.account_id, d, k.id, 'model', 100, 100, 400, 1, 1, 0, 1, 500 \
                 FROM generate_series({last_day} - {DAYS} + 1, {last_day}) AS d, api_keys k; ANALYZE"
        ))
        .await
        .unwrap();
    for (account, accounts) in [(None, ACCOUNTS as i64), (one, 1)] {
        let before = read_stats(&database).await;
        let store = database.open().await;
        let permit = ask(Principal::Operator, chancery_policy::FirmResource).unwrap();
        let report =
            store.usage_reports.read_usage(permit, MonthlyUsageQuery { account, month }).await.unwrap();
        assert_eq!(report.days.len(), 30);
        assert_eq!(report.days[0].requests, accounts as u64);
        store.close().await;
        let after = read_stats(&database).await;
        let (scans, fetched, ledger_scans) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        assert_eq!((scans, ledger_scans), (0, 0), "{account:?}");
        assert!(fetched > 0, "{account:?}: nothing was counted");
        assert!(fetched <= QUERIES * 31 * accounts + 1, "{account:?}: {fetched} lines were fetched");
    }
}

/// Number of scans of each ledger partition so far.
async fn scans_by_partition(database: &PostgresDatabase) -> BTreeMap<String, i64> {
    let mut connection = database.connect().await;
    wait_for_session_end(&mut connection).await;
    let scans = connection.rows(
        "SELECT relname::text, seq_scan + COALESCE(idx_scan, 0) FROM pg_stat_user_tables \
         WHERE relid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'ledger'::regclass)",
    );
    scans.await.into_iter().map(|[partition, scans]| (partition, scans.parse().unwrap())).collect()
}

#[tokio::test]
async fn request_lookup_scans_one_partition() {
    const MONTHS: i64 = 14;
    /// Beyond the number of executions after which PostgreSQL may choose a generic plan.
    const REQUESTS: usize = 12;
    const A_MONTH_MS: i64 = 31 * 86_400_000;
    let database = Arc::new(PostgresDatabase::create());
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let of_moment =
        |at: UnixMillis| UsageRow { request_id: RequestId::new(at, &OsRandomness), at, ..row(0, billed_key) };
    for month in 1..MONTHS {
        store.ledger.settle(of_moment(UnixMillis(NOON.0 - month * A_MONTH_MS)).into()).await.unwrap();
    }
    let rows: Vec<UsageRow> = (0..REQUESTS).map(|_| of_moment(NOON)).collect();
    store.ledger.settle(of_moment(NOON).into()).await.unwrap();
    store.close().await;
    database.raw("ANALYZE").await.unwrap();
    let before = scans_by_partition(&database).await;
    assert_eq!(before.len() as i64, MONTHS + 1, "one for each month, and the one for what has none");
    let store = database.open().await;
    for (number, row) in rows.iter().enumerate() {
        let (key, expires_at): (IdempotencyKey, _) =
            (format!("order-{number}").parse().unwrap(), UnixMillis(NOON.0 + 1_000));
        let claim = KeyClaim {
            account: billed_key.0,
            key: key.clone(),
            fingerprint: Fingerprint([7; 32]),
            request_id: row.request_id.clone(),
            now: NOON,
            expires_at,
        };
        store.idempotency.claim_key(&claim).await.unwrap();
        let stored_reply = StoredReply {
            key: key.clone(),
            reasoning_text: String::new(),
            output_text: "text".to_owned(),
            logprobs: None,
            reasoning_tokens: 0,
            expires_at,
        };
        let settlement =
            Settlement { row: row.clone(), is_reserved: false, stored_reply: Some(stored_reply) };
        store.ledger.settle(settlement.clone()).await.unwrap();
        // The second time, it is compared with the stored row.
        store.ledger.settle(settlement).await.unwrap();
        let holder = store.idempotency.idempotency_record(billed_key.0, &key, NOON).await.unwrap().unwrap();
        assert_eq!(holder.reply.unwrap().row, *row);
    }
    store.close().await;
    let after = scans_by_partition(&database).await;
    let looked_at: Vec<&String> = after.keys().filter(|name| after[*name] > before[*name]).collect();
    assert_eq!(looked_at, ["ledger_2026_11"], "before {before:?}, after {after:?}");
}
