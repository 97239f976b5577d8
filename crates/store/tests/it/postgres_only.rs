//! What only a server can show: sessions that end, servers that are gone or silent, and their settings.

use crate::billing::{issue_new, use_a_million};
use crate::databases::{PostgresDatabase, TestDatabase, on_a_fresh};
use crate::firm::{after_s, ask, firm_permit, new_client, note, people, words};
use crate::samples::{NOON, account, key, new_account, payer, request, row, whole_ledger};
use chancery_domain::{
    Asker, ContactFacts, Fingerprint, IdempotencyKey, Month, Nanos, OsRandomness, RequestId, UnixMillis,
    UsageRow,
};
use chancery_policy::NewClientFor;
use chancery_store::{
    AccountError, CapChange, Claim, ClientOrder, ClientQuery, DatabaseUrl, DbError, KeptReply, LedgerError,
    LimitsChange, NewClient, OpenError, Reserved, Settlement, SpendingReservation, Store, UsageBy,
    UsageMonth, UsageQuery,
};
use sqlx::PgConnection;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server may take to end the sessions of a store that was closed.
const SESSIONS_END_TIMEOUT: Duration = Duration::from_secs(30);

const EVERY_DAY: UsageQuery = UsageQuery { account: None, from: None, to: None, by: UsageBy::Day };

async fn refusal(url: &str) -> OpenError {
    match Store::open(&url.parse().unwrap()).await {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error,
    }
}

/// Ends every session of the store, as a restart of the server would.
async fn end_sessions(database: &PostgresDatabase) {
    database
        .raw(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'chancery'",
        )
        .await
        .unwrap();
}

/// Waits until so many statements of the store stand behind a lock.
async fn wait_until_locked_out(database: &PostgresDatabase, statements: i64) {
    let mut connection = database.connect().await;
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'chancery' AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        if waiting >= statements {
            return;
        }
    }
}

async fn rows_by_partition(database: &PostgresDatabase) -> Vec<(String, i64)> {
    let mut connection = database.connect().await;
    sqlx::query_as("SELECT tableoid::regclass::text, COUNT(*) FROM ledger GROUP BY 1 ORDER BY 1")
        .fetch_all(&mut connection)
        .await
        .unwrap()
}

/// A way to the database that breaks the connection on which a statement with this text is first sent.
fn through_a_breaking_wire(database: &PostgresDatabase, statement: &'static str) -> DatabaseUrl {
    let url = database.url_text();
    let (user, place) = url.trim_start_matches("postgres://").split_once('@').unwrap();
    let (server, name) = place.split_once('/').unwrap();
    let wire = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let through = format!("postgres://{user}@{}/{name}", wire.local_addr().unwrap());
    let (server, is_broken) = (server.to_owned(), Arc::new(AtomicBool::new(false)));
    std::thread::spawn(move || {
        for client in wire.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (mut answers, mut answered) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut answers, &mut answered));
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
                // Either may have been shut by the other side before.
                let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
            });
        }
    });
    through.parse().unwrap()
}

#[tokio::test]
async fn broken_sessions_are_replaced_and_no_row_is_lost() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        for number in 0..10 {
            store.ledger.settle(row(number, payer).into()).await.unwrap();
            end_sessions(&database).await;
            store.health.ping().await.unwrap();
        }
        assert_eq!(whole_ledger(&store).await.len(), 10);
    })
    .await;
}

#[tokio::test]
async fn a_session_that_ended_before_a_new_months_first_row_loses_nothing() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        let later = Month::of(NOON).next().next().next().first_day().start();
        for at in [NOON, later] {
            let row = UsageRow { request_id: RequestId::new(at, &OsRandomness), at, ..row(1, payer) };
            store.ledger.settle(row.into()).await.unwrap();
            end_sessions(&database).await;
        }
        assert_eq!(whole_ledger(&store).await.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn requests_that_wait_for_their_accounts_caps_keep_nobody_from_authenticating() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
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
        // Another node is slow to let go of the accounts.
        let mut other = database.connect().await;
        sqlx::raw_sql("BEGIN; SELECT 1 FROM accounts FOR UPDATE").execute(&mut other).await.unwrap();
        let mut reserving = tokio::task::JoinSet::new();
        for number in 0..60 {
            let (store, account) = (Arc::clone(&store), accounts[number % accounts.len()]);
            let reservation = SpendingReservation {
                request_id: request(number),
                account,
                amount: Nanos(1),
                at: NOON,
                now: NOON,
                expires_at: UnixMillis(NOON.0 + 1_000_000),
            };
            reserving.spawn(async move { store.spending.reserve_spending(reservation).await });
        }
        wait_until_locked_out(&database, 8).await;
        let looked_up = async {
            for _ in 0..20 {
                assert!(store.keys.key_with_prefix(&key.prefix).await.unwrap().is_some());
            }
        };
        tokio::time::timeout(Duration::from_secs(2), looked_up).await.unwrap();
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        let outcomes = reserving.join_all().await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Reserved::Yes))), "{outcomes:?}");
    })
    .await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_not_billed_twice() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        let mut settling = tokio::task::JoinSet::new();
        for number in 0..2000 {
            let store = Arc::clone(&store);
            settling.spawn(async move { (number, store.ledger.settle(row(number, payer).into()).await) });
        }
        for _ in 0..10 {
            end_sessions(&database).await;
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
        let stored = whole_ledger(&store).await;
        for number in settled {
            let row: UsageRow = row(number, payer);
            assert_eq!(stored.iter().filter(|stored| **stored == row).count(), 1, "{number}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_set_to_answer_before_the_disk_is_overruled() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        database
            .raw(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name()))
            .await
            .unwrap();
        let store = database.open().await;
        let payer = payer(&store).await;
        // The check is made inside the very transactions that must be durable.
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
        store.ledger.settle(row(1, payer).into()).await.unwrap();
        account(&store, "Another").await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_named() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        database.open().await.close().await;
        let read_only = format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name());
        database.raw(&read_only).await.unwrap();
        let store = database.open().await;
        assert!(store.account_lookup.list_accounts().await.unwrap().is_empty());
        let error = store.create_account(new_account("Hale & Ward")).await.unwrap_err();
        assert!(matches!(error, AccountError::Database(DbError::ReadOnly(_))), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_user_without_rights_is_told_which_it_needs() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let role = format!("{}_guest", database.name());
        database.raw(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
        let (_, host) =
            database.url_text().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let error = refusal(&format!("postgres://{role}@{host}")).await;
        database.raw(&format!("DROP ROLE {role}")).await.unwrap();
        assert!(error.to_string().contains("create and write tables"), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn the_ledger_cannot_be_truncated() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        store.ledger.settle(row(1, payer(&store).await).into()).await.unwrap();
        store.partitions.make_months_ready(NOON).await.unwrap();
        database.raw("SELECT * FROM ledger_of_no_month, ledger_2026_12").await.unwrap();
        for sql in ["TRUNCATE ledger", "TRUNCATE ledger_of_no_month", "TRUNCATE ledger_2026_12"] {
            assert!(database.raw(sql).await.is_err(), "{sql}");
        }
        assert!(database.raw("TRUNCATE accounts CASCADE").await.is_err());
        assert_eq!(whole_ledger(&store).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn rows_lie_in_the_partition_of_their_month_and_the_next_one_is_ready() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let (store, other) = (database.open().await, database.open().await);
        let payer = payer(&store).await;
        let month = Month::of(NOON);
        let (first, last) = (month.first_day().start(), month.last_day().end());
        let moments = [first.0 - 1, first.0, NOON.0, last.0 - 1, last.0].map(UnixMillis);
        let mut settling = tokio::task::JoinSet::new();
        for (place, at) in moments.into_iter().enumerate() {
            // Two nodes find at the same time that a partition is missing.
            for store in [Arc::clone(&store), Arc::clone(&other)] {
                let request_id = RequestId::new(at, &OsRandomness);
                let row = UsageRow { request_id, at, ..row(place, payer) };
                settling.spawn(async move { store.ledger.settle(row.into()).await });
            }
        }
        assert!(settling.join_all().await.iter().all(Result::is_ok));
        let expected = [("ledger_2026_10", 2), ("ledger_2026_11", 6), ("ledger_2026_12", 2)];
        assert_eq!(rows_by_partition(&database).await, expected.map(|(name, rows)| (name.to_owned(), rows)));
        // Both nodes see at the same time to the months to come.
        let (one, two) =
            tokio::join!(store.partitions.make_months_ready(last), other.partitions.make_months_ready(last));
        one.and(two).unwrap();
        database.raw("SELECT * FROM ledger_2027_01").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn rows_of_a_month_whose_partition_cannot_be_made_are_kept_all_the_same() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        database.raw("CREATE TABLE ledger_2026_11 (theirs INTEGER)").await.unwrap();
        let request_id = RequestId::new(NOON, &OsRandomness);
        let row = UsageRow { request_id, ..row(1, payer) };
        store.ledger.settle(row.clone().into()).await.unwrap();
        assert_eq!(whole_ledger(&store).await, [row]);
        // A later process finds rows where the partition's should be, and leaves them there when it settles.
        database.raw("DROP TABLE ledger_2026_11").await.unwrap();
        let later = database.open().await;
        let request_id = RequestId::new(NOON, &OsRandomness);
        later.ledger.settle(UsageRow { request_id, ..self::row(2, payer) }.into()).await.unwrap();
        assert_eq!(rows_by_partition(&database).await, [("ledger_of_no_month".to_owned(), 2)]);
        let before = whole_ledger(&store).await;
        // Its upkeep moves them, and nobody can remove a row afterwards any more than before.
        later.partitions.make_months_ready(NOON).await.unwrap();
        assert_eq!(rows_by_partition(&database).await, [("ledger_2026_11".to_owned(), 2)]);
        assert_eq!(whole_ledger(&store).await, before);
        let request_id = RequestId::from_stored("no time at all".to_owned());
        later.ledger.settle(UsageRow { request_id, ..self::row(3, payer) }.into()).await.unwrap();
        for sql in ["DELETE FROM ledger_of_no_month", "DELETE FROM ledger_2026_11", "DELETE FROM ledger"] {
            assert!(database.raw(sql).await.is_err(), "{sql}");
        }
        assert_eq!(whole_ledger(&store).await.len(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_month_that_could_not_be_made_is_made_later_by_the_same_process() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        database.raw("ALTER FUNCTION add_ledger_month RENAME TO away").await.unwrap();
        let row = UsageRow { request_id: RequestId::new(NOON, &OsRandomness), ..row(1, payer) };
        store.ledger.settle(row.into()).await.unwrap();
        let error = store.partitions.make_months_ready(NOON).await.unwrap_err();
        assert!(error.to_string().contains("2026-1"), "{error}");
        database.raw("ALTER FUNCTION away RENAME TO add_ledger_month").await.unwrap();
        store.partitions.make_months_ready(UnixMillis(NOON.0 + 1_000_000)).await.unwrap();
        assert_eq!(rows_by_partition(&database).await, [("ledger_2026_11".to_owned(), 1)]);
        database.raw("SELECT * FROM ledger_2026_12").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_statement_behind_a_lock_ends_with_the_cause() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        account(&store, "Hale & Ward").await;
        let mut other = database.connect().await;
        sqlx::raw_sql("BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE")
            .execute(&mut other)
            .await
            .unwrap();
        let error = store.account_lookup.list_accounts().await.unwrap_err();
        assert!(matches!(&error, DbError::Unavailable(why) if why.contains("took more than 5 s")), "{error}");
        drop(other);
        store.account_lookup.list_accounts().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn sums_and_pages_may_take_longer_than_other_statements() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        store.ledger.settle(row(1, payer(&store).await).into()).await.unwrap();
        let mut other = database.connect().await;
        sqlx::raw_sql("BEGIN; LOCK TABLE accounts, usage_days, ledger IN ACCESS EXCLUSIVE MODE")
            .execute(&mut other)
            .await
            .unwrap();
        let sums = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.ledger.usage(EVERY_DAY).await }
        });
        let page = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.ledger_chains.ledger_rows(None, 10).await }
        });
        wait_until_locked_out(&database, 2).await;
        // Its five seconds are the longest that the others could have.
        store.account_lookup.list_accounts().await.unwrap_err();
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        assert_eq!(sums.await.unwrap().unwrap().len(), 1);
        assert_eq!(page.await.unwrap().unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn sums_that_take_long_keep_nobody_else_waiting() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        account(&store, "Hale & Ward").await;
        let mut other = database.connect().await;
        sqlx::raw_sql("BEGIN; LOCK TABLE usage_days IN ACCESS EXCLUSIVE MODE")
            .execute(&mut other)
            .await
            .unwrap();
        let mut sums = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let store = Arc::clone(&store);
            sums.spawn(async move { store.ledger.usage(EVERY_DAY).await });
        }
        wait_until_locked_out(&database, 2).await;
        // These have connections of their own, and closing does not wait for the sums' end.
        for _ in 0..20 {
            store.account_lookup.list_accounts().await.unwrap();
        }
        assert!(sums.try_join_next().is_none(), "the sums still wait");
        tokio::time::timeout(Duration::from_secs(60), store.close()).await.unwrap();
        drop(other);
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_breaks_while_a_row_is_compared_is_replaced() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let row = row(1, payer(&store).await);
        store.ledger.settle(row.clone().into()).await.unwrap();
        let comparing = "SELECT * FROM ledger WHERE request_id = $1";
        let store = Store::open(&through_a_breaking_wire(&database, comparing)).await.unwrap();
        store.ledger.settle(row.clone().into()).await.unwrap();
        store.ledger.settle(row.into()).await.unwrap();
        store.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_without_the_password() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = refusal(&format!("postgres://ann:hunter2@127.0.0.1:{port}/firm")).await;
    assert!(matches!(error, OpenError::Database(DbError::Unavailable(_))), "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(text.contains(&format!("127.0.0.1:{port}")) && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn a_silent_server_is_given_up_in_time() {
    // Takes connections into its backlog and never says a word.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = refusal(&format!("postgres://ann@127.0.0.1:{port}/firm")).await;
    assert!(matches!(error, OpenError::Database(DbError::Unavailable(_))), "{error:?}");
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_named_with_the_fix() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let error = refusal(&format!("{}_missing", database.url_text())).await;
        let text = error.to_string();
        assert!(text.contains("_missing") && text.contains("createdb"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn an_invoice_is_issued_while_the_sums_are_vacuumed_and_others_settle() {
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        use_a_million(&store, 1, payer, "2026-10-15").await;
        let (mut vacuuming, mut settling) = (database.connect().await, database.connect().await);
        sqlx::raw_sql("BEGIN; LOCK TABLE usage_days IN SHARE UPDATE EXCLUSIVE MODE")
            .execute(&mut vacuuming)
            .await
            .unwrap();
        // Another node's settlement of the next month, which takes its time.
        sqlx::raw_sql(
            "BEGIN; INSERT INTO usage_days SELECT account_id, day + 31, key_id, model, 1, 1, 1, 1, 1, 2 FROM usage_days",
        )
        .execute(&mut settling)
        .await
        .unwrap();
        issue_new(&store, payer.0, "2026-10", "2026-11-02").await;
    })
    .await;
}

/// What a session has read is told when it ends.
async fn wait_for_the_sessions_end(connection: &mut PgConnection) {
    let ended = async {
        loop {
            let sessions: i64 = sqlx::query_scalar(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'chancery'",
            )
            .fetch_one(&mut *connection)
            .await
            .unwrap();
            if sessions == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(SESSIONS_END_TIMEOUT, ended).await;
    assert!(ended.is_ok(), "the store was closed and its sessions go on");
}

/// Rows of the clients' table and of its indexes that the server has read so far.
async fn client_rows_read(database: &PostgresDatabase) -> i64 {
    let mut connection = database.connect().await;
    wait_for_the_sessions_end(&mut connection).await;
    sqlx::query_scalar(
        "SELECT CAST((SELECT SUM(seq_tup_read) FROM pg_stat_user_tables WHERE relname = 'clients') \
         + (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'clients') AS BIGINT)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_page_of_the_list_reads_its_own_rows_and_not_the_table() {
    const CLIENTS: usize = 4000;
    on_a_fresh::<PostgresDatabase, _>(|database| async move {
        let store = database.open().await;
        let people = people(&store).await;
        let owner = |number: usize| if number.is_multiple_of(2) { people.maya.id } else { people.tom.id };
        let new = (0..CLIENTS).map(|number| {
            let at = after_s((number * 7919 % CLIENTS) as i64);
            let entries = vec![note(owner(number), at, "A note")];
            // Rows as wide as they may be: a small table is quicker read whole.
            let facts = ContactFacts { address: "x".repeat(400).parse().unwrap(), ..ContactFacts::default() };
            let new =
                NewClient { facts, entries, ..new_client(&format!("Client {}", number * 7919 % CLIENTS)) };
            (ask(Asker::Operator, NewClientFor(owner(number))).unwrap(), new)
        });
        store.client_imports.import_clients(new.collect(), &|_| {}).await.unwrap();
        store.close().await;
        database.raw("ANALYZE").await.unwrap();
        let orders = [
            ClientOrder::RecentFirst,
            ClientOrder::OldestFirst,
            ClientOrder::Name,
            ClientOrder::NameBackwards,
            ClientOrder::Id,
            ClientOrder::IdBackwards,
            ClientOrder::Owner,
            ClientOrder::OwnerBackwards,
        ];
        for order in orders {
            let before = client_rows_read(&database).await;
            let store = database.open().await;
            for person in [&people.maya, &people.ruth] {
                let page = store
                    .clients
                    .list_clients(firm_permit(person), &ClientQuery { order, ..words("") })
                    .await
                    .unwrap();
                assert_eq!(page.lines.len(), 25);
            }
            store.close().await;
            let read = client_rows_read(&database).await - before;
            // Each line is read in the index of the order and in the table. Planning looks at a few rows more.
            assert!(read <= 2 * (2 * 25 + 50), "{order:?}: {read} rows for two pages");
        }
    })
    .await;
}

/// Whole scans of the sums by day, lines of them that were fetched by an index, and looks at the ledger of either kind.
async fn reads(database: &PostgresDatabase) -> (i64, i64, i64) {
    let mut connection = database.connect().await;
    wait_for_the_sessions_end(&mut connection).await;
    sqlx::query_as(
        "SELECT CAST(SUM(seq_scan) FILTER (WHERE relname = 'usage_days') AS BIGINT), \
         CAST(SUM(idx_tup_fetch) FILTER (WHERE relname = 'usage_days') AS BIGINT), \
         CAST(SUM(seq_scan + COALESCE(idx_scan, 0)) FILTER (WHERE relname LIKE 'ledger%') AS BIGINT) \
         FROM pg_stat_user_tables",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_month_of_usage_is_read_by_index_whatever_the_ledger_and_the_other_months_hold() {
    const ACCOUNTS: usize = 20;
    const DAYS: i64 = 731;
    /// Groupings of the month, and the month before.
    const QUERIES: i64 = 5;
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let mut one = None;
        for number in 0..ACCOUNTS {
            let account = account(&store, &format!("Account {number}")).await.id;
            key(&store, Some(account)).await;
            one = Some(account);
        }
        let month = Month::of(NOON);
        let last_day = month.last_day().0;
        store.close().await;
        database
            .raw(&format!(
                "INSERT INTO usage_days SELECT k.account_id, d, k.id, 'model', 100, 400, 1, 1, 1, 500 \
                 FROM generate_series({last_day} - {DAYS} + 1, {last_day}) AS d, api_keys k; ANALYZE"
            ))
            .await
            .unwrap();
        for (account, accounts) in [(None, ACCOUNTS as i64), (one, 1)] {
            let before = reads(&database).await;
            let store = database.open().await;
            let permit = ask(Asker::Operator, chancery_policy::TheFirm).unwrap();
            let report = store.usage_reports.read_usage(permit, UsageMonth { account, month }).await.unwrap();
            assert_eq!(report.days.len(), 30);
            assert_eq!(report.days[0].requests, accounts as u64);
            store.close().await;
            let after = reads(&database).await;
            let (scans, fetched, looks) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
            assert_eq!((scans, looks), (0, 0), "{account:?}");
            assert!(fetched > 0, "{account:?}: nothing was counted");
            assert!(fetched <= QUERIES * 31 * accounts + 1, "{account:?}: {fetched} lines were fetched");
        }
    })
    .await;
}

/// How often each partition of the ledger was looked at so far, for rows that were asked for.
async fn looks_by_partition(database: &PostgresDatabase) -> BTreeMap<String, i64> {
    let mut connection = database.connect().await;
    wait_for_the_sessions_end(&mut connection).await;
    let looks: Vec<(String, i64)> = sqlx::query_as(
        "SELECT relname::text, seq_scan + COALESCE(idx_scan, 0) FROM pg_stat_user_tables \
         WHERE relid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'ledger'::regclass)",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    looks.into_iter().collect()
}

#[tokio::test]
async fn what_a_request_asks_of_the_ledger_is_asked_of_its_months_partition_alone() {
    const MONTHS: i64 = 14;
    /// Past the number after which PostgreSQL may settle on one plan for every value.
    const REQUESTS: usize = 12;
    const A_MONTH_MS: i64 = 31 * 86_400_000;
    on_a_fresh(|database: Arc<PostgresDatabase>| async move {
        let store = database.open().await;
        let payer = payer(&store).await;
        let of_moment =
            |at: UnixMillis| UsageRow { request_id: RequestId::new(at, &OsRandomness), at, ..row(0, payer) };
        for month in 1..MONTHS {
            store.ledger.settle(of_moment(UnixMillis(NOON.0 - month * A_MONTH_MS)).into()).await.unwrap();
        }
        let rows: Vec<UsageRow> = (0..REQUESTS).map(|_| of_moment(NOON)).collect();
        store.ledger.settle(of_moment(NOON).into()).await.unwrap();
        store.close().await;
        database.raw("ANALYZE").await.unwrap();
        let before = looks_by_partition(&database).await;
        assert_eq!(before.len() as i64, MONTHS + 1, "one for each month, and the one for what has none");
        let store = database.open().await;
        for (number, row) in rows.iter().enumerate() {
            let (key, expires_at): (IdempotencyKey, _) =
                (format!("order-{number}").parse().unwrap(), UnixMillis(NOON.0 + 1_000));
            let claim = Claim {
                account: payer.0,
                key: key.clone(),
                fingerprint: Fingerprint([7; 32]),
                request_id: row.request_id.clone(),
                now: NOON,
                expires_at,
            };
            store.idempotency.claim_key(&claim).await.unwrap();
            let kept =
                KeptReply { key: key.clone(), output_text: "text".to_owned(), cached_tokens: 0, expires_at };
            let settlement = Settlement { row: row.clone(), is_reserved: false, kept: Some(kept) };
            store.ledger.settle(settlement.clone()).await.unwrap();
            // A second time it is compared with what is there.
            store.ledger.settle(settlement).await.unwrap();
            let holder = store.idempotency.key_holder(payer.0, &key, NOON).await.unwrap().unwrap();
            assert_eq!(holder.reply.unwrap().row, *row);
        }
        store.close().await;
        let after = looks_by_partition(&database).await;
        let looked_at: Vec<&String> = after.keys().filter(|name| after[*name] > before[*name]).collect();
        assert_eq!(looked_at, ["ledger_2026_11"], "before {before:?}, after {after:?}");
    })
    .await;
}
