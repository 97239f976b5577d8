//! Conformance: partners manage accounts and keys. A change, its decision and its history event are written together,
//! or none of them is.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{People, after_s, ask, authz_request, decisions, firm_permit, people};
use crate::samples::{HOSTILE_TEXTS, NOON, account, key, name, new_account, new_key, row, with_tokens};
use chancery_domain::{
    Account, AccountId, AccountName, AccountState, Action, Day, Decision, Key, KeyPrefix, KeyState, Month,
    Nanos, Principal, RateLimits,
};
use chancery_policy::{FirmResource, ManageAccounts, ReadAccounts};
use chancery_store::{
    ACCOUNTS_PER_PAGE, AccountChange, AccountChangeOutcome, AccountCursor, AccountError, AccountEvent,
    AccountPage, AccountPosition, AccountQuery, AccountRecord, AccountSubject, BillingChange, CapChange,
    DbError, LimitsChange, ListTotal, MAX_ACCOUNT_EVENTS, MAX_COUNTED_ROWS, MAX_KEYS_LISTED, NewKey, Store,
};
use std::sync::Arc;
use tokio::task::JoinSet;

async fn read(store: &Store, people: &People, id: AccountId) -> AccountRecord {
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    store.accounts.read_account(permit, id, Month::containing(NOON)).await.unwrap().unwrap()
}

async fn list(store: &Store, people: &People, cursor: Option<AccountCursor>) -> AccountPage {
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    let month = Month::containing(NOON);
    let query = AccountQuery { month, cursor, counts_all: false, reads_options: true };
    store.accounts.read_accounts(permit, query).await.unwrap()
}

/// The page behind the last account of this one.
fn after(page: &AccountPage) -> Option<AccountCursor> {
    page.accounts.last().map(|last| AccountCursor::After(AccountPosition::of(&last.account)))
}

/// The page before the first account of this one.
fn before(page: &AccountPage) -> Option<AccountCursor> {
    page.accounts.first().map(|first| AccountCursor::Before(AccountPosition::of(&first.account)))
}

fn names(page: &AccountPage) -> Vec<String> {
    page.accounts.iter().map(|line| line.account.name.to_string()).collect()
}

/// Applies the change as Ruth.
async fn apply(store: &Store, people: &People, change: AccountChange) -> AccountChangeOutcome {
    store.accounts.change_account(firm_permit(&people.ruth), change).await.unwrap()
}

async fn rejected(store: &Store, people: &People, change: AccountChange) -> AccountError {
    store.accounts.change_account(firm_permit(&people.ruth), change).await.unwrap_err()
}

fn changed_account(apply: AccountChangeOutcome) -> Account {
    match apply.subject {
        AccountSubject::Account(account) => account,
        AccountSubject::Key(key) => panic!("{key:?}"),
    }
}

fn changed_key(apply: AccountChangeOutcome) -> Key {
    match apply.subject {
        AccountSubject::Key(key) => key,
        AccountSubject::Account(account) => panic!("{account:?}"),
    }
}

fn descriptions(events: &[AccountEvent]) -> Vec<&str> {
    events.iter().map(|event| event.description.as_str()).collect()
}

fn limits(requests_per_min: u32) -> LimitsChange {
    LimitsChange { requests_per_min: Some(requests_per_min), ..LimitsChange::default() }
}

async fn decided(store: &Store) -> Vec<(Action, Decision)> {
    decisions(store).await.iter().map(|row| (row.access_request.action, row.decision)).collect()
}

pub async fn account_history_records_every_change_with_actor_and_time(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let created = apply(&store, &people, AccountChange::CreateAccount(new_account("Hale & Ward"))).await;
    let event = created.event.unwrap();
    let created = changed_account(created);
    assert_eq!(store.account_lookup.account_by_name(&name("Hale & Ward")).await.unwrap(), created);
    let id = created.id;
    let change = LimitsChange {
        requests_per_min: Some(120),
        tokens_per_min: None,
        spend_per_month: CapChange::Set(Nanos(250_000_000_001)),
    };
    let changed =
        changed_account(apply(&store, &people, AccountChange::SetLimits { account: id, change }).await);
    assert_eq!(changed.limits, RateLimits { requests_per_min: 120, tokens_per_min: 60_000 });
    assert_eq!(changed.spend_per_month, Some(Nanos(250_000_000_001)));
    let billing = BillingChange {
        address: Some("12 Harbour Lane\nBoston".parse().unwrap()),
        email: Some("bills@hale.example".parse().unwrap()),
    };
    apply(&store, &people, AccountChange::SetBilling { account: id, change: billing }).await;
    let email = BillingChange { address: None, email: Some("new@hale.example".parse().unwrap()) };
    apply(&store, &people, AccountChange::SetBilling { account: id, change: email }).await;
    let key = changed_key(apply(&store, &people, AccountChange::CreateKey(new_key(Some(id)))).await);
    let prefix = key.prefix.clone();
    let label = AccountChange::LabelKey { key: prefix.clone(), label: "backend".to_owned() };
    assert_eq!(changed_key(apply(&store, &people, label).await).label, "backend");
    let revoked = changed_key(apply(&store, &people, AccountChange::RevokeKey(prefix.clone())).await);
    assert_eq!(revoked.state, KeyState::Revoked { at: NOON });
    let by_command = ask::<ManageAccounts>(Principal::Operator, FirmResource).unwrap();
    let closed =
        changed_account(store.accounts.change_account(by_command, AccountChange::Close(id)).await.unwrap());
    assert_eq!(closed.state, AccountState::Closed { at: NOON });

    let record = read(&store, &people, id).await;
    assert_eq!(record.account, closed);
    assert_eq!(record.billing.address.as_str(), "12 Harbour Lane\nBoston");
    assert_eq!(record.billing.email.as_str(), "new@hale.example");
    assert_eq!(store.account_lookup.billing_contacts().await.unwrap(), [(id, record.billing.clone())]);
    assert_eq!((record.keys.len(), record.keys_total), (1, 1));
    let found = store.keys.key_by_prefix(&prefix).await.unwrap().unwrap().key;
    assert_eq!((found.label.as_str(), found.state), ("backend", KeyState::Revoked { at: NOON }));
    assert_eq!(
        descriptions(&record.events),
        [
            "closed the account".to_owned(),
            format!("revoked the key {prefix}"),
            format!("changed the label of the key {prefix} from “a label” to “backend”"),
            format!("created the key {prefix} “a label”"),
            "changed the billing email from bills@hale.example to new@hale.example".to_owned(),
            "added the billing address and changed the billing email from none to bills@hale.example"
                .to_owned(),
            "changed requests per minute from 60 to 120, the monthly cap from none to 250.000000001"
                .to_owned(),
            "created the account with 60 requests and 60,000 tokens per minute".to_owned(),
        ]
    );
    assert_eq!(record.events.last().unwrap().id, event);
    assert_eq!(record.events[0].by, None, "command line");
    assert!(record.events[1..].iter().all(|event| event.by.as_ref().unwrap().id == people.ruth.id));
    assert!(record.events.iter().all(|event| event.at == NOON));
    let decided = decided(&store).await;
    assert_eq!(decided.len(), 9);
    assert_eq!(decided[..8], [(Action::ManageAccounts, Decision::Allowed); 8]);
    assert_eq!(decided[8], (Action::ReadAccounts, Decision::Allowed));
}

pub async fn rejected_change_leaves_no_decision_and_no_event(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let closed = account(&store, "Closed").await;
    let open = account(&store, "Open").await;
    let active = key(&store, Some(open.id)).await;
    let revoked = key(&store, Some(open.id)).await;
    store.revoke_key(&revoked.prefix, NOON).await.unwrap();
    store.close_account(&closed.name, NOON).await.unwrap();
    let before = [read(&store, &people, closed.id).await, read(&store, &people, open.id).await];
    let decided = decisions(&store).await.len();
    let unknown_account = AccountId(777);
    let unknown = KeyPrefix::from_stored("ck_nobody00".to_owned());
    let twin = NewKey { prefix: active.prefix.clone(), ..new_key(Some(open.id)) };
    let nul = NewKey { label: "a\0b".to_owned(), ..new_key(Some(open.id)) };

    let is_closed =
        |error: &AccountError| matches!(error, AccountError::AccountClosed(name) if *name == closed.name);
    let is_no_account = |error: &AccountError| matches!(error, AccountError::NoSuchAccountId(AccountId(777)));
    let is_no_key = |error: &AccountError| matches!(error, AccountError::NoSuchKey);
    let is_taken =
        |error: &AccountError| matches!(error, AccountError::AccountNameTaken(name) if *name == open.name);
    let is_twin = |error: &AccountError| matches!(error, AccountError::KeyPrefixTaken(prefix) if *prefix == active.prefix);
    let is_revoked =
        |error: &AccountError| matches!(error, AccountError::KeyRevoked(prefix) if *prefix == revoked.prefix);
    let is_nul = |error: &AccountError| matches!(error, AccountError::Database(DbError::NulCharacter { .. }));
    type Is<'a> = &'a (dyn Fn(&AccountError) -> bool + Sync);
    let attach = |key: &KeyPrefix, account| AccountChange::AttachKey { key: key.clone(), account };
    let label =
        |key: &KeyPrefix, label: &str| AccountChange::LabelKey { key: key.clone(), label: label.to_owned() };
    let cases: Vec<(AccountChange, Is<'_>)> = vec![
        (AccountChange::CreateAccount(new_account("Open")), &is_taken),
        (AccountChange::SetLimits { account: unknown_account, change: limits(1) }, &is_no_account),
        (
            AccountChange::SetBilling { account: unknown_account, change: BillingChange::default() },
            &is_no_account,
        ),
        (AccountChange::Close(unknown_account), &is_no_account),
        (AccountChange::CreateKey(new_key(Some(closed.id))), &is_closed),
        (AccountChange::CreateKey(new_key(Some(unknown_account))), &is_no_account),
        (AccountChange::CreateKey(twin), &is_twin),
        (AccountChange::CreateKey(nul), &is_nul),
        (label(&unknown, "x"), &is_no_key),
        (label(&KeyPrefix::from_stored("ck_\0".to_owned()), "x"), &is_no_key),
        (label(&active.prefix, "a\0b"), &is_nul),
        (attach(&active.prefix, closed.id), &is_closed),
        (attach(&active.prefix, unknown_account), &is_no_account),
        (attach(&revoked.prefix, open.id), &is_revoked),
        (attach(&unknown, open.id), &is_no_key),
        (AccountChange::RevokeKey(unknown.clone()), &is_no_key),
    ];
    for (change, is_it) in cases {
        let what = format!("{change:?}");
        let error = rejected(&store, &people, change).await;
        assert!(is_it(&error), "{what}: {error:?}");
        assert_eq!(decisions(&store).await.len(), decided, "{what}");
    }
    let found = store.keys.key_by_prefix(&active.prefix).await.unwrap().unwrap();
    assert_eq!((found.key.label.as_str(), found.key.account), ("a label", Some(open.id)));
    assert_eq!(store.account_lookup.list_keys().await.unwrap().len(), 2);
    assert_eq!(store.account_lookup.list_accounts().await.unwrap().len(), 2);
    for before in before {
        assert_eq!(read(&store, &people, before.account.id).await.events, before.events);
    }
    assert!(list(&store, &people, None).await.events.is_empty());
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    assert!(
        store
            .accounts
            .read_account(permit, unknown_account, Month::containing(NOON))
            .await
            .unwrap()
            .is_none()
    );
}

pub async fn no_op_change_is_audited_and_adds_no_event(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let hale = account(&store, "Hale & Ward").await;
    let key = key(&store, Some(hale.id)).await;
    store.revoke_key(&key.prefix, after_s(-60)).await.unwrap();
    let other = crate::samples::key(&store, Some(hale.id)).await;
    let before = read(&store, &people, hale.id).await.events.len();
    let changes = [
        AccountChange::SetLimits { account: hale.id, change: limits(60) },
        AccountChange::SetBilling { account: hale.id, change: BillingChange::default() },
        AccountChange::RevokeKey(key.prefix.clone()),
        AccountChange::LabelKey { key: other.prefix.clone(), label: "a label".to_owned() },
        AccountChange::AttachKey { key: other.prefix.clone(), account: hale.id },
    ];
    let count = changes.len();
    for change in changes {
        assert!(apply(&store, &people, change).await.event.is_none());
    }
    store.close_account(&hale.name, after_s(-30)).await.unwrap();
    let closed = apply(&store, &people, AccountChange::Close(hale.id)).await;
    assert!(closed.event.is_none());
    assert_eq!(
        changed_account(closed).state,
        AccountState::Closed { at: after_s(-30) },
        "the first time stands"
    );
    let found = store.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap().key;
    assert_eq!(found.state, KeyState::Revoked { at: after_s(-60) });
    let decided = decided(&store).await;
    assert_eq!(decided[0], (Action::ReadAccounts, Decision::Allowed));
    assert_eq!(decided[1..], vec![(Action::ManageAccounts, Decision::Allowed); count + 1]);
    let events = read(&store, &people, hale.id).await.events;
    assert_eq!(events.len(), before + 1, "only the closing that was one");
    assert_eq!(events[0].description, "closed the account");
}

pub async fn moving_a_key_adds_an_event_to_both_accounts(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (hale, ward) = (account(&store, "Hale").await, account(&store, "Ward").await);
    let free = changed_key(apply(&store, &people, AccountChange::CreateKey(new_key(None))).await);
    assert_eq!(free.account, None);
    let prefix = free.prefix.clone();
    let page = list(&store, &people, None).await;
    assert_eq!((page.unassigned_keys[0].key.id, page.unassigned_keys_total), (free.id, 1));
    assert_eq!(descriptions(&page.events), [format!("created the key {prefix} “a label”")]);
    assert_eq!(read(&store, &people, hale.id).await.unassigned_keys[0].key.id, free.id);

    for to in [hale.id, ward.id] {
        let moved =
            apply(&store, &people, AccountChange::AttachKey { key: prefix.clone(), account: to }).await;
        let event = moved.event.unwrap();
        assert_eq!(changed_key(moved).account, Some(to));
        let record = read(&store, &people, to).await;
        assert_eq!(record.events[0].id, event, "the line is on the page of the account that it bills now");
        assert_eq!(record.keys[0].key.prefix, prefix);
        assert!(record.unassigned_keys.is_empty());
    }
    let (hale, ward) = (read(&store, &people, hale.id).await, read(&store, &people, ward.id).await);
    let created = "created the account with 60 requests and 60,000 tokens per minute";
    assert_eq!(
        descriptions(&hale.events),
        [&*format!("moved the key {prefix} to Ward"), &*format!("attached the key {prefix}"), created]
    );
    assert_eq!(descriptions(&ward.events), [&*format!("moved the key {prefix} from Hale"), created]);
    assert!(hale.keys.is_empty());
    assert!(list(&store, &people, None).await.unassigned_keys.is_empty());
}

pub async fn account_list_shows_active_keys_monthly_usage_and_last_use(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (hale, idle) = (account(&store, "Hale").await, account(&store, "Büro").await);
    let gone = account(&store, "Anna").await;
    store.close_account(&gone.name, NOON).await.unwrap();
    let (one, two) = (key(&store, Some(hale.id)).await, key(&store, Some(hale.id)).await);
    let never = key(&store, Some(hale.id)).await;
    store.revoke_key(&two.prefix, NOON).await.unwrap();
    let day_ms = 86_400_000;
    // In the previous month, in this month, and for the other key.
    for (number, key, days_ago) in [(1, one.id, 20), (2, one.id, 3), (3, one.id, 2), (4, two.id, 5)] {
        let mut row = with_tokens(row(number, (hale.id, key)), 10, 20);
        row.at.0 -= days_ago * day_ms;
        store.ledger.settle(row.into()).await.unwrap();
    }
    let page = list(&store, &people, None).await;
    let listed: Vec<(&str, u64, u64, i64)> = page
        .accounts
        .iter()
        .map(|line| (line.account.name.as_str(), line.active_keys, line.month.requests, line.month.cost.0))
        .collect();
    let cost = 10 * 100 + 20 * 400;
    assert_eq!(listed, [("Büro", 0, 0, 0), ("Hale", 2, 3, 3 * cost), ("Anna", 0, 0, 0)], "closed ones last");
    assert_eq!(page.total, ListTotal::Exact(3));
    let open: Vec<&AccountName> = page.open_accounts.iter().map(|choice| &choice.name).collect();
    assert_eq!(open, [&idle.name, &hale.name]);

    let record = read(&store, &people, hale.id).await;
    assert_eq!((record.month.requests, record.month.input_tokens, record.month.output_tokens), (3, 30, 60));
    let today = Day::containing(NOON);
    let keys: Vec<_> = record.keys.iter().map(|used| (used.key.id, used.last_used)).collect();
    assert_eq!(
        keys,
        [(never.id, None), (one.id, Some(Day(today.0 - 2))), (two.id, Some(Day(today.0 - 5)))],
        "the newest first, revoked ones last"
    );
}

pub async fn accounts_are_paged_by_name_in_both_directions(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    for number in 0..2 * ACCOUNTS_PER_PAGE + 20 {
        let created = account(&store, &format!("Büro & Söhne {number:03}")).await;
        if number % 3 == 0 {
            store.close_account(&created.name, NOON).await.unwrap();
            closed.push(created.name.to_string());
        } else {
            open.push(created.name.to_string());
        }
    }
    let expected = [open, closed].concat();
    let (mut forward, mut page) = (Vec::new(), list(&store, &people, None).await);
    assert!(!page.has_previous);
    loop {
        forward.extend(names(&page));
        if !page.has_next {
            break;
        }
        assert_eq!(page.accounts.len(), ACCOUNTS_PER_PAGE as usize);
        page = list(&store, &people, after(&page)).await;
        assert!(page.has_previous);
    }
    assert_eq!(forward, expected);
    let mut backward = names(&page);
    while page.has_previous {
        page = list(&store, &people, before(&page)).await;
        assert!(page.has_next);
        backward.splice(0..0, names(&page));
    }
    assert_eq!(backward, expected);
    // Programs may count pages instead.
    let numbered = async |number: u32| list(&store, &people, Some(AccountCursor::Page(number))).await;
    let mut counted = Vec::new();
    for number in 1..=3 {
        let page = numbered(number).await;
        assert_eq!((page.has_previous, page.has_next), (number > 1, number < 3), "page {number}");
        counted.extend(names(&page));
    }
    assert_eq!(counted, expected);
    for number in [4, u32::MAX] {
        let behind = numbered(number).await;
        assert!(behind.accounts.is_empty() && behind.has_previous && !behind.has_next);
    }
    // An account that is closed meanwhile neither hides nor repeats another one.
    let first = list(&store, &people, None).await;
    let last = first.accounts.last().unwrap().account.name.clone();
    store.close_account(&last, NOON).await.unwrap();
    let second = list(&store, &people, after(&first)).await;
    assert_eq!(names(&second)[0], expected[ACCOUNTS_PER_PAGE as usize]);
}

pub async fn accounts_are_counted_up_to_a_limit(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let add = format!(
        "INSERT INTO accounts (name, requests_per_min, tokens_per_min, created_at_ms) \
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <= {MAX_COUNTED_ROWS}) \
         SELECT 'Account ' || n, 60, 60000, 0 FROM numbers"
    );
    database.raw(&add).await.unwrap();
    let page = list(&store, &people, None).await;
    assert_eq!((page.total, page.has_next), (ListTotal::MoreThan(MAX_COUNTED_ROWS), true));
    let month = Month::containing(NOON);
    let all = AccountQuery { month, cursor: None, counts_all: true, reads_options: false };
    let page = store.accounts.read_accounts(firm_permit(&people.ruth), all).await.unwrap();
    assert_eq!(page.total, ListTotal::Exact(MAX_COUNTED_ROWS + 1));
    assert!(page.open_accounts.is_empty());
}

pub async fn account_key_and_event_lists_are_bounded(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let hale = account(&store, "000").await;
    for number in 1..=ACCOUNTS_PER_PAGE {
        account(&store, &format!("{number:03}")).await;
    }
    let first = list(&store, &people, None).await;
    assert_eq!(
        (first.accounts.len(), first.total),
        (ACCOUNTS_PER_PAGE as usize, ListTotal::Exact(u64::from(ACCOUNTS_PER_PAGE) + 1))
    );
    let last = list(&store, &people, after(&first)).await;
    assert_eq!(last.accounts[0].account.name.as_str(), format!("{ACCOUNTS_PER_PAGE:03}"));
    let behind = list(&store, &people, after(&last)).await;
    assert!(behind.accounts.is_empty() && behind.has_previous && !behind.has_next);
    for _ in 0..=MAX_KEYS_LISTED {
        key(&store, Some(hale.id)).await;
    }
    for number in 0..=MAX_ACCOUNT_EVENTS {
        let change = limits(1_000 + number);
        apply(&store, &people, AccountChange::SetLimits { account: hale.id, change }).await;
    }
    let record = read(&store, &people, hale.id).await;
    assert_eq!(record.events.len(), MAX_ACCOUNT_EVENTS as usize);
    assert!(
        record.events[0].description.contains(&format!("to 1,{:03}", MAX_ACCOUNT_EVENTS)),
        "{:?}",
        record.events[0]
    );
    assert_eq!(
        (record.keys.len(), record.keys_total),
        (MAX_KEYS_LISTED as usize, u64::from(MAX_KEYS_LISTED) + 1)
    );
}

/// Changes race on two nodes. Each event records the actual previous value, so the events connect from first to last.
pub async fn concurrent_limit_changes_each_record_the_previous_value(database: Arc<AnyDatabase>) {
    const RACERS: u32 = 24;
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    let id = account(&stores[0], "Hale & Ward").await.id;
    let mut racers = JoinSet::new();
    for number in 0..RACERS {
        let (store, people) = (Arc::clone(&stores[number as usize % 2]), Arc::clone(&people));
        racers.spawn(async move {
            let change = limits(100 + number);
            changed_account(apply(&store, &people, AccountChange::SetLimits { account: id, change }).await)
        });
    }
    racers.join_all().await;
    let record = read(&stores[0], &people, id).await;
    assert_eq!(record.events.len(), RACERS as usize + 1);
    let mut before = "60".to_owned();
    // Skips the event of the account's creation.
    for event in record.events.iter().rev().skip(1) {
        let limits = event.description.strip_prefix("changed requests per minute from ").unwrap();
        let (from, to) = limits.split_once(" to ").unwrap();
        assert_eq!(from, before, "{:?}", record.events);
        to.clone_into(&mut before);
    }
    assert_eq!(record.account.limits.requests_per_min.to_string(), before);
    assert_eq!(decided(&stores[0]).await.len(), RACERS as usize + 1);
}

/// Whichever comes first, a revoked key keeps the account that it has then, and is never attached after that.
pub async fn revoked_key_is_never_attached_under_race(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    let (hale, ward) = (account(&stores[0], "Hale").await.id, account(&stores[0], "Ward").await.id);
    for round in 0..10 {
        let prefix = key(&stores[0], Some(hale)).await.prefix;
        let spawned = |store: usize, change: AccountChange| {
            let (store, people) = (Arc::clone(&stores[store]), Arc::clone(&people));
            tokio::spawn(
                async move { store.accounts.change_account(firm_permit(&people.ruth), change).await },
            )
        };
        let attach = spawned(round % 2, AccountChange::AttachKey { key: prefix.clone(), account: ward });
        let revoke = spawned(1 - round % 2, AccountChange::RevokeKey(prefix.clone()));
        let (attached, revoked) = (attach.await.unwrap(), revoke.await.unwrap());
        assert!(revoked.unwrap().event.is_some());
        let found = stores[0].keys.key_by_prefix(&prefix).await.unwrap().unwrap().key;
        assert_eq!(found.state, KeyState::Revoked { at: NOON });
        let (at_hale, at_ward) =
            (read(&stores[0], &people, hale).await.events, read(&stores[0], &people, ward).await.events);
        let revoking = format!("revoked the key {prefix}");
        match attached {
            Ok(_) => {
                assert_eq!(found.account, Some(ward));
                assert_eq!(at_ward[0].description, revoking);
                assert_eq!(at_ward[1].description, format!("moved the key {prefix} from Hale"));
            }
            Err(AccountError::KeyRevoked(_)) => {
                assert_eq!(found.account, Some(hale));
                assert_eq!(at_hale[0].description, revoking);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A key that is created while its account is being closed exists before the closing, or not at all.
pub async fn closed_account_gets_no_new_key_under_race(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    for round in 0..10 {
        let id = account(&stores[0], &format!("Hale {round}")).await.id;
        let spawned = |store: usize, change: AccountChange| {
            let (store, people) = (Arc::clone(&stores[store]), Arc::clone(&people));
            tokio::spawn(
                async move { store.accounts.change_account(firm_permit(&people.ruth), change).await },
            )
        };
        let create = spawned(round % 2, AccountChange::CreateKey(new_key(Some(id))));
        let close = spawned(1 - round % 2, AccountChange::Close(id));
        let (created, closed) = (create.await.unwrap(), close.await.unwrap());
        assert!(closed.unwrap().event.is_some());
        let record = read(&stores[0], &people, id).await;
        match created {
            Ok(_) => {
                assert_eq!((record.keys.len(), descriptions(&record.events)[0]), (1, "closed the account"));
            }
            Err(AccountError::AccountClosed(_)) => {
                assert!(record.keys.is_empty() && record.events.len() == 2);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub async fn raw_sql_cannot_update_or_delete_account_events(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let id =
        changed_account(apply(&store, &people, AccountChange::CreateAccount(new_account("Hale"))).await).id;
    let before = read(&store, &people, id).await.events;
    for sql in ["UPDATE account_events SET detail = 'nothing'", "DELETE FROM account_events"] {
        let error = database.raw(sql).await.unwrap_err();
        assert!(error.to_string().contains("append-only"), "{error}");
    }
    assert_eq!(read(&store, &people, id).await.events, before);
}

pub async fn hostile_labels_and_names_round_trip_in_history(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let id = account(&store, "Hale").await.id;
    let prefix = key(&store, Some(id)).await.prefix;
    for text in HOSTILE_TEXTS {
        let change = AccountChange::LabelKey { key: prefix.clone(), label: text.to_owned() };
        assert_eq!(changed_key(apply(&store, &people, change).await).label, text);
        let record = read(&store, &people, id).await;
        assert_eq!(record.keys[0].key.label, text);
        assert!(record.events[0].description.ends_with(&format!("to “{text}”")), "{:?}", record.events[0]);
    }
    let at = after_s(5);
    let permit = crate::firm::POLICY
        .decide::<ManageAccounts>(&authz_request(crate::firm::principal(&people.ruth), at), FirmResource)
        .unwrap();
    store.accounts.change_account(permit, AccountChange::RevokeKey(prefix)).await.unwrap();
    assert_eq!(read(&store, &people, id).await.events[0].at, at);
}
