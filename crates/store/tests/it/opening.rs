//! Conformance: opening, migrating, sharing and closing a database.

use crate::billing::issue;
use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{NOON, account, all_ledger_rows, billed_key, key, name, new_account, new_key, row};
use chancery_domain::{KeyPrefix, WriterId};
use chancery_store::{AccountChange, LimitsChange, OpenError, Store, UsageBy, UsageQuery};
use std::sync::Arc;

pub async fn data_survives_reopen(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.ledger.settle(row(1, billed_key).into()).await.unwrap();
    let accounts = store.account_lookup.list_accounts().await.unwrap();
    store.close().await;
    drop(store);

    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), accounts);
    assert_eq!(store.account_lookup.list_keys().await.unwrap()[0].key.id, billed_key.1);
    assert_eq!(store.ledger_chains.ledger_rows(None, 10).await.unwrap(), [row(1, billed_key)]);
    store.close().await;
}

pub async fn newer_schema_is_rejected_with_its_version(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let accounts = [account(&store, "Hale & Ward").await];
    database
        .raw("INSERT INTO schema_migrations (version, name, checksum) SELECT 999, 'future', checksum FROM schema_migrations")
        .await
        .unwrap();
    let error = database.try_open().await.err().unwrap();
    assert!(matches!(error, OpenError::NewerSchema { found: 999, known } if known < 999), "{error:?}");
    assert!(error.to_string().contains("newer version") && error.to_string().contains("999"));
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), accounts, "nothing was touched");
}

pub async fn a_schema_from_before_the_baseline_is_rejected(database: Arc<AnyDatabase>) {
    database.open().await.close().await;
    database.raw("UPDATE schema_migrations SET version = 10").await.unwrap();
    for error in [database.try_open().await.err().unwrap(), open_existing_error(&database).await] {
        assert!(matches!(error, OpenError::OldSchema), "{error:?}");
    }
}

pub async fn foreign_tables_are_left_untouched(database: Arc<AnyDatabase>) {
    database.raw("CREATE TABLE accounts (theirs INTEGER)").await.unwrap();
    let error = database.try_open().await.err().unwrap();
    assert!(matches!(error, OpenError::NotChanceryDatabase), "{error:?}");
    database.raw("INSERT INTO accounts (theirs) VALUES (1)").await.unwrap();
    assert!(database.raw("SELECT * FROM schema_migrations").await.is_err(), "nothing was made there");
}

async fn open_existing_error(database: &AnyDatabase) -> OpenError {
    match Store::open_existing(&database.url()).await {
        Ok(_) => panic!("{} was opened", database.url()),
        Err(error) => error,
    }
}

pub async fn open_existing_creates_nothing(database: Arc<AnyDatabase>) {
    for _ in 0..2 {
        let error = open_existing_error(&database).await;
        let url = database.url().to_string();
        assert!(
            matches!(&error, OpenError::NoDatabase { location: named } if !named.is_empty() && url.ends_with(named)),
            "{error:?}"
        );
    }
    // Another program's tables are not a Chancery database either.
    database.raw("CREATE TABLE accounts (theirs INTEGER)").await.unwrap();
    assert!(matches!(open_existing_error(&database).await, OpenError::NoDatabase { .. }));
    assert!(database.raw("SELECT * FROM schema_migrations").await.is_err(), "nothing was made there");
}

pub async fn open_existing_opens_existing_database(database: Arc<AnyDatabase>) {
    let server = database.open().await;
    let accounts = [account(&server, "Hale & Ward").await];
    let store = Store::open_existing(&database.url()).await.unwrap();
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), accounts);
    store.close().await;
    server.close().await;
    let store = Store::open_existing(&database.url()).await.unwrap();
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), accounts);
    store.close().await;
}

pub async fn open_existing_rejects_newer_schema(database: Arc<AnyDatabase>) {
    database.open().await.close().await;
    database.raw("UPDATE schema_migrations SET version = 999").await.unwrap();
    let error = open_existing_error(&database).await;
    assert!(matches!(error, OpenError::NewerSchema { found: 999, .. }), "{error:?}");
}

pub async fn stores_on_one_database_see_each_others_writes(database: Arc<AnyDatabase>) {
    let (server, command) = (database.open().await, database.open().await);
    let account = account(&server, "Hale & Ward").await;
    let key = key(&command, Some(account.id)).await;
    let mut settling = tokio::task::JoinSet::new();
    for number in 0..200 {
        let store = Arc::clone(if number % 2 == 0 { &server } else { &command });
        // Every second request is settled through both, as two nodes would after a handover.
        let twin = Arc::clone(if number % 2 == 0 { &command } else { &server });
        settling.spawn(async move {
            store.ledger.settle(row(number, (account.id, key.id)).into()).await?;
            if number % 4 < 2 {
                twin.ledger.settle(row(number, (account.id, key.id)).into()).await
            } else {
                Ok(())
            }
        });
    }
    command.revoke_key(&key.prefix, NOON).await.unwrap();
    let seen = server.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap();
    assert_ne!(seen.key.state, chancery_domain::KeyState::Active);
    for outcome in settling.join_all().await {
        outcome.unwrap();
    }
    assert_eq!(all_ledger_rows(&server).await.len(), 200);
    assert_eq!(all_ledger_rows(&server).await, all_ledger_rows(&command).await);
}

pub async fn concurrent_first_opens_all_succeed(database: Arc<AnyDatabase>) {
    let mut opening = tokio::task::JoinSet::new();
    for number in 0..8 {
        let database = Arc::clone(&database);
        opening.spawn(async move {
            let store = database.open().await;
            account(&store, &format!("Account {number}")).await;
            store.close().await;
        });
    }
    opening.join_all().await;
    assert_eq!(database.open().await.account_lookup.list_accounts().await.unwrap().len(), 8);
}

pub async fn closed_store_returns_unavailable(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.close().await;
    store.close().await;
    let prefix = KeyPrefix::from_stored("ck_nobody00".to_owned());
    let query = UsageQuery { account: None, from: None, to: None, by: UsageBy::Day };
    let (name, change) = (name("Hale & Ward"), LimitsChange::default());
    fn text(error: impl std::error::Error) -> String {
        error.to_string()
    }
    let errors = [
        store.create_account(new_account("Another")).await.err().map(text),
        store.account_lookup.list_accounts().await.err().map(text),
        store.account_lookup.account_by_name(&name).await.err().map(text),
        store
            .change_account(NOON, AccountChange::SetLimits { account: billed_key.0, change })
            .await
            .err()
            .map(text),
        store.change_account(NOON, AccountChange::Close(billed_key.0)).await.err().map(text),
        store.create_key(new_key(None)).await.err().map(text),
        store.account_lookup.list_keys().await.err().map(text),
        store.keys.key_by_prefix(&prefix).await.err().map(text),
        store.attach_key(&prefix, billed_key.0).await.err().map(text),
        store.revoke_key(&prefix, NOON).await.err().map(text),
        store.ledger.settle(row(1, billed_key).into()).await.err().map(text),
        store.ledger.usage(query).await.err().map(text),
        store.ledger_chains.ledger_rows(None, 1).await.err().map(text),
        store.ledger_chains.next_writer(None).await.err().map(text),
        store.ledger_chains.chain_head(WriterId(1)).await.err().map(text),
        store.ledger_chains.chained_rows(WriterId(1), None, 1).await.err().map(text),
        store.ledger_chains.daily_usage(None, 1).await.err().map(text),
        store.leases.renew_lease(NOON).await.err().map(text),
        store.leases.reap_orphaned_reservations(NOON, 1).await.err().map(text),
        store.idempotency.delete_expired_keys(NOON, 1).await.err().map(text),
        store.stored_replies.finished_keys(None, 1).await.err().map(text),
        store.spending.release_spending(&row(1, billed_key).request_id).await.err().map(text),
        store.issued_invoices.issued_invoices(None, 1).await.err().map(text),
        store.issued_invoices.last_invoice_numbers().await.err().map(text),
        issue(&store, billed_key.0, "2026-10", "2026-11-15").await.err().map(text),
        store.health.ping().await.err().map(text),
    ];
    for (index, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {index} was answered"));
        assert!(error.contains("did not answer: the store is closed"), "{index}: {error}");
    }
}

pub async fn ping_succeeds_on_open_store(database: Arc<AnyDatabase>) {
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    store.health.ping().await.unwrap();
    store.close().await;
    assert!(store.health.ping().await.is_err());
}
