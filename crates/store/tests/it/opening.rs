//! Conformance: opening, migrating, sharing and closing a database.

use crate::billing::issue;
use crate::databases::TestDatabase;
use crate::samples::{NOON, account, key, name, new_account, new_key, payer, row, whole_ledger};
use chancery_domain::{KeyPrefix, WriterId};
use chancery_store::{AccountDeed, LimitsChange, OpenError, Store, UsageBy, UsageQuery};
use std::sync::Arc;

pub async fn reopening_keeps_everything<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    store.ledger.settle(row(1, payer).into()).await.unwrap();
    let accounts = store.account_lookup.list_accounts().await.unwrap();
    store.close().await;
    drop(store);

    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), accounts);
    assert_eq!(store.account_lookup.list_keys().await.unwrap()[0].key.id, payer.1);
    assert_eq!(store.ledger_chains.ledger_rows(None, 10).await.unwrap(), [row(1, payer)]);
    store.close().await;
}

pub async fn a_newer_schema_is_refused_by_number<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let accounts = [account(&store, "Hale & Ward").await];
    database
        .raw("INSERT INTO schema_migrations (version, name, checksum) SELECT 999, 'future', checksum FROM schema_migrations")
        .await
        .unwrap();
    let error = database.try_open().await.err().unwrap();
    assert!(matches!(error, OpenError::NewerSchema { found: 999, known } if known < 999), "{error:?}");
    assert!(error.to_string().contains("newer chancery") && error.to_string().contains("999"));
    assert_eq!(store.account_lookup.list_accounts().await.unwrap(), accounts, "nothing was touched");
}

pub async fn a_schema_from_before_the_baseline_is_rejected<D: TestDatabase>(database: Arc<D>) {
    database.open().await.close().await;
    database.raw("UPDATE schema_migrations SET version = 10").await.unwrap();
    for error in [database.try_open().await.err().unwrap(), refusal_to_look(&*database).await] {
        assert!(matches!(error, OpenError::OldSchema), "{error:?}");
    }
}

pub async fn another_programs_tables_are_left_alone<D: TestDatabase>(database: Arc<D>) {
    database.raw("CREATE TABLE accounts (theirs INTEGER)").await.unwrap();
    let error = database.try_open().await.err().unwrap();
    assert!(matches!(error, OpenError::ForeignDatabase), "{error:?}");
    database.raw("INSERT INTO accounts (theirs) VALUES (1)").await.unwrap();
    assert!(database.raw("SELECT * FROM schema_migrations").await.is_err(), "nothing was made there");
}

async fn refusal_to_look<D: TestDatabase>(database: &D) -> OpenError {
    match Store::open_existing(&database.url()).await {
        Ok(_) => panic!("{} was opened", database.url()),
        Err(error) => error,
    }
}

pub async fn looking_where_no_database_is_makes_none<D: TestDatabase>(database: Arc<D>) {
    for _ in 0..2 {
        let error = refusal_to_look(&*database).await;
        let place = database.url().to_string();
        assert!(
            matches!(&error, OpenError::NoDatabase { place: named } if !named.is_empty() && place.ends_with(named)),
            "{error:?}"
        );
    }
    // Another program's tables are no database of ours either.
    database.raw("CREATE TABLE accounts (theirs INTEGER)").await.unwrap();
    assert!(matches!(refusal_to_look(&*database).await, OpenError::NoDatabase { .. }));
    assert!(database.raw("SELECT * FROM schema_migrations").await.is_err(), "nothing was made there");
}

pub async fn looking_at_a_database_that_is_there_opens_it<D: TestDatabase>(database: Arc<D>) {
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

pub async fn looking_at_a_newer_schema_is_refused<D: TestDatabase>(database: Arc<D>) {
    database.open().await.close().await;
    database.raw("UPDATE schema_migrations SET version = 999").await.unwrap();
    let error = refusal_to_look(&*database).await;
    assert!(matches!(error, OpenError::NewerSchema { found: 999, .. }), "{error:?}");
}

pub async fn two_stores_on_one_database_see_each_others_writes<D: TestDatabase>(database: Arc<D>) {
    let (server, command) = (database.open().await, database.open().await);
    let account = account(&server, "Hale & Ward").await;
    let key = key(&command, Some(account.id)).await;
    let mut settling = tokio::task::JoinSet::new();
    for number in 0..200 {
        let store = Arc::clone(if number % 2 == 0 { &server } else { &command });
        // Every second request is settled through both, as two nodes would after a hand-over.
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
    let seen = server.keys.key_with_prefix(&key.prefix).await.unwrap().unwrap();
    assert_ne!(seen.key.state, chancery_domain::KeyState::Active);
    for outcome in settling.join_all().await {
        outcome.unwrap();
    }
    assert_eq!(whole_ledger(&server).await.len(), 200);
    assert_eq!(whole_ledger(&server).await, whole_ledger(&command).await);
}

pub async fn many_opening_an_empty_database_at_once_all_succeed<D: TestDatabase>(database: Arc<D>) {
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

pub async fn a_closed_store_answers_unavailable<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
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
        store.account_lookup.account_named(&name).await.err().map(text),
        store.change_account(NOON, AccountDeed::SetLimits { account: payer.0, change }).await.err().map(text),
        store.change_account(NOON, AccountDeed::Close(payer.0)).await.err().map(text),
        store.create_key(new_key(None)).await.err().map(text),
        store.account_lookup.list_keys().await.err().map(text),
        store.keys.key_with_prefix(&prefix).await.err().map(text),
        store.attach_key(&prefix, payer.0).await.err().map(text),
        store.revoke_key(&prefix, NOON).await.err().map(text),
        store.ledger.settle(row(1, payer).into()).await.err().map(text),
        store.ledger.usage(query).await.err().map(text),
        store.ledger_chains.ledger_rows(None, 1).await.err().map(text),
        store.ledger_chains.writer_after(None).await.err().map(text),
        store.ledger_chains.chain_head(WriterId(1)).await.err().map(text),
        store.ledger_chains.chained_rows(WriterId(1), None, 1).await.err().map(text),
        store.ledger_chains.day_usage(None, 1).await.err().map(text),
        store.leases.renew_lease(NOON).await.err().map(text),
        store.leases.forget_dead(NOON, 1).await.err().map(text),
        store.idempotency.forget_expired_keys(NOON, 1).await.err().map(text),
        store.stored_replies.kept_keys(None, 1).await.err().map(text),
        store.spending.release_spending(&row(1, payer).request_id).await.err().map(text),
        store.issued_invoices.issued_invoices(None, 1).await.err().map(text),
        store.issued_invoices.last_invoice_numbers().await.err().map(text),
        issue(&store, payer.0, "2026-10", "2026-11-15").await.err().map(text),
        store.health.ping().await.err().map(text),
    ];
    for (place, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {place} was answered"));
        assert!(error.contains("did not answer: the store is closed"), "{place}: {error}");
    }
}

pub async fn an_open_store_answers_a_ping<D: TestDatabase>(database: Arc<D>) {
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    store.health.ping().await.unwrap();
    store.close().await;
    assert!(store.health.ping().await.is_err());
}
