//! Conformance: accounts and keys as partners manage them. A deed, its decision and its line in the history are there together,
//! or none of them is.

use crate::databases::TestDatabase;
use crate::firm::{People, after_s, ask, asking, decisions, firm_permit, people};
use crate::samples::{HOSTILE, NOON, account, key, name, new_account, new_key, row, with_tokens};
use chancery_domain::{
    Account, AccountId, AccountName, AccountState, Action, Asker, Day, Decision, Key, KeyPrefix, KeyState,
    Month, Nanos, RateLimits,
};
use chancery_policy::{ManageAccounts, ReadAccounts, TheFirm};
use chancery_store::{
    ACCOUNTS_PER_PAGE, AccountDeed, AccountDone, AccountError, AccountEvent, AccountPage, AccountQuery,
    AccountRecord, AccountSubject, BillingChange, CapChange, DbError, LimitsChange, MAX_ACCOUNT_EVENTS,
    MAX_KEYS_LISTED, NewKey, Store,
};
use std::sync::Arc;
use tokio::task::JoinSet;

async fn read(store: &Store, people: &People, id: AccountId) -> AccountRecord {
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    store.accounts.read_account(permit, id, Month::of(NOON)).await.unwrap().unwrap()
}

async fn list(store: &Store, people: &People, page: u32) -> AccountPage {
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    store.accounts.read_accounts(permit, AccountQuery { month: Month::of(NOON), page }).await.unwrap()
}

/// Ruth does it.
async fn done(store: &Store, people: &People, deed: AccountDeed) -> AccountDone {
    store.accounts.do_with_account(firm_permit(&people.ruth), deed).await.unwrap()
}

async fn refused(store: &Store, people: &People, deed: AccountDeed) -> AccountError {
    store.accounts.do_with_account(firm_permit(&people.ruth), deed).await.unwrap_err()
}

fn the_account(done: AccountDone) -> Account {
    match done.subject {
        AccountSubject::Account(account) => account,
        AccountSubject::Key(key) => panic!("{key:?}"),
    }
}

fn the_key(done: AccountDone) -> Key {
    match done.subject {
        AccountSubject::Key(key) => key,
        AccountSubject::Account(account) => panic!("{account:?}"),
    }
}

fn words(events: &[AccountEvent]) -> Vec<&str> {
    events.iter().map(|event| event.deed.as_str()).collect()
}

fn limits(requests_per_min: u32) -> LimitsChange {
    LimitsChange { requests_per_min: Some(requests_per_min), ..LimitsChange::default() }
}

async fn decided(store: &Store) -> Vec<(Action, Decision)> {
    decisions(store).await.iter().map(|row| (row.asked.action, row.decision)).collect()
}

pub async fn an_accounts_whole_life_is_in_its_history_with_who_and_when<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let made = done(&store, &people, AccountDeed::Make(new_account("Hale & Ward"))).await;
    let event = made.event.unwrap();
    let made = the_account(made);
    assert_eq!(store.account_lookup.account_named(&name("Hale & Ward")).await.unwrap(), made);
    let id = made.id;
    let change = LimitsChange {
        requests_per_min: Some(120),
        tokens_per_min: None,
        spend_per_month: CapChange::Set(Nanos(250_000_000_001)),
    };
    let changed = the_account(done(&store, &people, AccountDeed::SetLimits { account: id, change }).await);
    assert_eq!(changed.limits, RateLimits { requests_per_min: 120, tokens_per_min: 60_000 });
    assert_eq!(changed.spend_per_month, Some(Nanos(250_000_000_001)));
    let billing = BillingChange {
        address: Some("12 Harbour Lane\nBoston".parse().unwrap()),
        email: Some("bills@hale.example".parse().unwrap()),
    };
    done(&store, &people, AccountDeed::SetBilling { account: id, change: billing }).await;
    let email = BillingChange { address: None, email: Some("new@hale.example".parse().unwrap()) };
    done(&store, &people, AccountDeed::SetBilling { account: id, change: email }).await;
    let key = the_key(done(&store, &people, AccountDeed::MakeKey(new_key(Some(id)))).await);
    let prefix = key.prefix.clone();
    let label = AccountDeed::LabelKey { key: prefix.clone(), label: "backend".to_owned() };
    assert_eq!(the_key(done(&store, &people, label).await).label, "backend");
    let revoked = the_key(done(&store, &people, AccountDeed::RevokeKey(prefix.clone())).await);
    assert_eq!(revoked.state, KeyState::Revoked { at: NOON });
    let by_command = ask::<ManageAccounts>(Asker::Operator, TheFirm).unwrap();
    let closed =
        the_account(store.accounts.do_with_account(by_command, AccountDeed::Close(id)).await.unwrap());
    assert_eq!(closed.state, AccountState::Closed { at: NOON });

    let record = read(&store, &people, id).await;
    assert_eq!(record.account, closed);
    assert_eq!(record.billing.address.as_str(), "12 Harbour Lane\nBoston");
    assert_eq!(record.billing.email.as_str(), "new@hale.example");
    assert_eq!(store.account_lookup.billing_contacts().await.unwrap(), [(id, record.billing.clone())]);
    assert_eq!((record.keys.len(), record.keys_total), (1, 1));
    let found = store.keys.key_with_prefix(&prefix).await.unwrap().unwrap().key;
    assert_eq!((found.label.as_str(), found.state), ("backend", KeyState::Revoked { at: NOON }));
    assert_eq!(
        words(&record.events),
        [
            "closed the account".to_owned(),
            format!("revoked the key {prefix}"),
            format!("changed the label of the key {prefix} from “a label” to “backend”"),
            format!("made the key {prefix} “a label”"),
            "changed the e-mail address for invoices from bills@hale.example to new@hale.example".to_owned(),
            "gave the address that invoices go to, changed the e-mail address for invoices from none to bills@hale.example".to_owned(),
            "changed requests per minute from 60 to 120, the cap per month from none to 250.000000001".to_owned(),
            "made the account, with 60 requests and 60,000 tokens per minute".to_owned(),
        ]
    );
    assert_eq!(record.events.last().unwrap().id, event);
    assert_eq!(record.events[0].by, None, "the command line");
    assert!(record.events[1..].iter().all(|event| event.by.as_ref().unwrap().id == people.ruth.id));
    assert!(record.events.iter().all(|event| event.at == NOON));
    let decided = decided(&store).await;
    assert_eq!(decided.len(), 9);
    assert_eq!(decided[..8], [(Action::ManageAccounts, Decision::Allowed); 8]);
    assert_eq!(decided[8], (Action::ReadAccounts, Decision::Allowed));
}

pub async fn what_is_refused_leaves_neither_a_decision_nor_a_line<D: TestDatabase>(database: Arc<D>) {
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
    let nobody = AccountId(777);
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
    let attach = |key: &KeyPrefix, account| AccountDeed::AttachKey { key: key.clone(), account };
    let label =
        |key: &KeyPrefix, label: &str| AccountDeed::LabelKey { key: key.clone(), label: label.to_owned() };
    let cases: Vec<(AccountDeed, Is<'_>)> = vec![
        (AccountDeed::Make(new_account("Open")), &is_taken),
        (AccountDeed::SetLimits { account: nobody, change: limits(1) }, &is_no_account),
        (AccountDeed::SetBilling { account: nobody, change: BillingChange::default() }, &is_no_account),
        (AccountDeed::Close(nobody), &is_no_account),
        (AccountDeed::MakeKey(new_key(Some(closed.id))), &is_closed),
        (AccountDeed::MakeKey(new_key(Some(nobody))), &is_no_account),
        (AccountDeed::MakeKey(twin), &is_twin),
        (AccountDeed::MakeKey(nul), &is_nul),
        (label(&unknown, "x"), &is_no_key),
        (label(&KeyPrefix::from_stored("ck_\0".to_owned()), "x"), &is_no_key),
        (label(&active.prefix, "a\0b"), &is_nul),
        (attach(&active.prefix, closed.id), &is_closed),
        (attach(&active.prefix, nobody), &is_no_account),
        (attach(&revoked.prefix, open.id), &is_revoked),
        (attach(&unknown, open.id), &is_no_key),
        (AccountDeed::RevokeKey(unknown.clone()), &is_no_key),
    ];
    for (deed, is_it) in cases {
        let what = format!("{deed:?}");
        let error = refused(&store, &people, deed).await;
        assert!(is_it(&error), "{what}: {error:?}");
        assert_eq!(decisions(&store).await.len(), decided, "{what}");
    }
    let found = store.keys.key_with_prefix(&active.prefix).await.unwrap().unwrap();
    assert_eq!((found.key.label.as_str(), found.key.account), ("a label", Some(open.id)));
    assert_eq!(store.account_lookup.list_keys().await.unwrap().len(), 2);
    assert_eq!(store.account_lookup.list_accounts().await.unwrap().len(), 2);
    for before in before {
        assert_eq!(read(&store, &people, before.account.id).await.events, before.events);
    }
    assert!(list(&store, &people, 1).await.events.is_empty());
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    assert!(store.accounts.read_account(permit, nobody, Month::of(NOON)).await.unwrap().is_none());
}

pub async fn what_is_so_already_is_decided_and_adds_no_line<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let hale = account(&store, "Hale & Ward").await;
    let key = key(&store, Some(hale.id)).await;
    store.revoke_key(&key.prefix, after_s(-60)).await.unwrap();
    let other = crate::samples::key(&store, Some(hale.id)).await;
    let before = read(&store, &people, hale.id).await.events.len();
    let deeds = [
        AccountDeed::SetLimits { account: hale.id, change: limits(60) },
        AccountDeed::SetBilling { account: hale.id, change: BillingChange::default() },
        AccountDeed::RevokeKey(key.prefix.clone()),
        AccountDeed::LabelKey { key: other.prefix.clone(), label: "a label".to_owned() },
        AccountDeed::AttachKey { key: other.prefix.clone(), account: hale.id },
    ];
    let count = deeds.len();
    for deed in deeds {
        assert!(done(&store, &people, deed).await.event.is_none());
    }
    store.close_account(&hale.name, after_s(-30)).await.unwrap();
    let closed = done(&store, &people, AccountDeed::Close(hale.id)).await;
    assert!(closed.event.is_none());
    assert_eq!(the_account(closed).state, AccountState::Closed { at: after_s(-30) }, "the first time stands");
    let found = store.keys.key_with_prefix(&key.prefix).await.unwrap().unwrap().key;
    assert_eq!(found.state, KeyState::Revoked { at: after_s(-60) });
    let decided = decided(&store).await;
    assert_eq!(decided[0], (Action::ReadAccounts, Decision::Allowed));
    assert_eq!(decided[1..], vec![(Action::ManageAccounts, Decision::Allowed); count + 1]);
    let events = read(&store, &people, hale.id).await.events;
    assert_eq!(events.len(), before + 1, "only the closing that was one");
    assert_eq!(events[0].deed, "closed the account");
}

pub async fn a_key_that_moves_is_told_of_on_both_sides<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (hale, ward) = (account(&store, "Hale").await, account(&store, "Ward").await);
    let free = the_key(done(&store, &people, AccountDeed::MakeKey(new_key(None))).await);
    assert_eq!(free.account, None);
    let prefix = free.prefix.clone();
    let page = list(&store, &people, 1).await;
    assert_eq!((page.unattached[0].key.id, page.unattached_total), (free.id, 1));
    assert_eq!(words(&page.events), [format!("made the key {prefix} “a label”")]);
    assert_eq!(read(&store, &people, hale.id).await.unattached[0].key.id, free.id);

    for to in [hale.id, ward.id] {
        let moved = done(&store, &people, AccountDeed::AttachKey { key: prefix.clone(), account: to }).await;
        let event = moved.event.unwrap();
        assert_eq!(the_key(moved).account, Some(to));
        let record = read(&store, &people, to).await;
        assert_eq!(record.events[0].id, event, "the line is on the page of the account that it bills now");
        assert_eq!(record.keys[0].key.prefix, prefix);
        assert!(record.unattached.is_empty());
    }
    let (hale, ward) = (read(&store, &people, hale.id).await, read(&store, &people, ward.id).await);
    let created = "made the account, with 60 requests and 60,000 tokens per minute";
    assert_eq!(
        words(&hale.events),
        [&*format!("moved the key {prefix} to Ward"), &*format!("attached the key {prefix}"), created]
    );
    assert_eq!(words(&ward.events), [&*format!("moved the key {prefix} here from Hale"), created]);
    assert!(hale.keys.is_empty());
    assert!(list(&store, &people, 1).await.unattached.is_empty());
}

pub async fn accounts_are_listed_with_keys_and_the_months_sums_and_last_use<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let people = people(&store).await;
    let (hale, idle) = (account(&store, "Hale").await, account(&store, "Büro").await);
    let gone = account(&store, "Anna").await;
    store.close_account(&gone.name, NOON).await.unwrap();
    let (one, two) = (key(&store, Some(hale.id)).await, key(&store, Some(hale.id)).await);
    let never = key(&store, Some(hale.id)).await;
    store.revoke_key(&two.prefix, NOON).await.unwrap();
    let day_ms = 86_400_000;
    // Of the month before, of this month, and of the other key.
    for (number, key, days_ago) in [(1, one.id, 20), (2, one.id, 3), (3, one.id, 2), (4, two.id, 5)] {
        let mut row = with_tokens(row(number, (hale.id, key)), 10, 20);
        row.at.0 -= days_ago * day_ms;
        store.ledger.settle(row.into()).await.unwrap();
    }
    let page = list(&store, &people, 1).await;
    let listed: Vec<(&str, u64, u64, i64)> = page
        .accounts
        .iter()
        .map(|line| (line.account.name.as_str(), line.active_keys, line.month.requests, line.month.cost.0))
        .collect();
    let cost = 10 * 100 + 20 * 400;
    assert_eq!(listed, [("Büro", 0, 0, 0), ("Hale", 2, 3, 3 * cost), ("Anna", 0, 0, 0)], "closed ones last");
    assert_eq!(page.total, 3);
    let open: Vec<&AccountName> = page.open_accounts.iter().map(|choice| &choice.name).collect();
    assert_eq!(open, [&idle.name, &hale.name]);

    let record = read(&store, &people, hale.id).await;
    assert_eq!((record.month.requests, record.month.input_tokens, record.month.output_tokens), (3, 30, 60));
    let today = Day::of(NOON);
    let keys: Vec<_> = record.keys.iter().map(|used| (used.key.id, used.last_used)).collect();
    assert_eq!(
        keys,
        [(never.id, None), (one.id, Some(Day(today.0 - 2))), (two.id, Some(Day(today.0 - 5)))],
        "the newest first, revoked ones last"
    );
}

pub async fn lists_of_accounts_keys_and_events_have_an_end<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let hale = account(&store, "000").await;
    for number in 1..=ACCOUNTS_PER_PAGE {
        account(&store, &format!("{number:03}")).await;
    }
    let first = list(&store, &people, 1).await;
    assert_eq!(
        (first.accounts.len(), first.total),
        (ACCOUNTS_PER_PAGE as usize, u64::from(ACCOUNTS_PER_PAGE) + 1)
    );
    let last = list(&store, &people, 2).await;
    assert_eq!(last.accounts[0].account.name.as_str(), format!("{ACCOUNTS_PER_PAGE:03}"));
    assert!(list(&store, &people, 3).await.accounts.is_empty());
    for page in [0, u32::MAX] {
        drop(list(&store, &people, page).await);
    }
    for _ in 0..=MAX_KEYS_LISTED {
        key(&store, Some(hale.id)).await;
    }
    for number in 0..=MAX_ACCOUNT_EVENTS {
        let change = limits(1_000 + number);
        done(&store, &people, AccountDeed::SetLimits { account: hale.id, change }).await;
    }
    let record = read(&store, &people, hale.id).await;
    assert_eq!(record.events.len(), MAX_ACCOUNT_EVENTS as usize);
    assert!(
        record.events[0].deed.contains(&format!("to 1,{:03}", MAX_ACCOUNT_EVENTS)),
        "{:?}",
        record.events[0]
    );
    assert_eq!(
        (record.keys.len(), record.keys_total),
        (MAX_KEYS_LISTED as usize, u64::from(MAX_KEYS_LISTED) + 1)
    );
}

/// From two nodes at once: each line tells what truly was before it, so that the lines make one chain from first to last.
pub async fn of_many_setting_limits_at_once_each_tells_what_was_before_it<D: TestDatabase>(database: Arc<D>) {
    const RACERS: u32 = 24;
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    let id = account(&stores[0], "Hale & Ward").await.id;
    let mut racers = JoinSet::new();
    for number in 0..RACERS {
        let (store, people) = (Arc::clone(&stores[number as usize % 2]), Arc::clone(&people));
        racers.spawn(async move {
            let change = limits(100 + number);
            the_account(done(&store, &people, AccountDeed::SetLimits { account: id, change }).await)
        });
    }
    racers.join_all().await;
    let record = read(&stores[0], &people, id).await;
    assert_eq!(record.events.len(), RACERS as usize + 1);
    let mut before = "60".to_owned();
    // After the one that tells of the new account.
    for event in record.events.iter().rev().skip(1) {
        let words = event.deed.strip_prefix("changed requests per minute from ").unwrap();
        let (from, to) = words.split_once(" to ").unwrap();
        assert_eq!(from, before, "{:?}", record.events);
        to.clone_into(&mut before);
    }
    assert_eq!(record.account.limits.requests_per_min.to_string(), before);
    assert_eq!(decided(&stores[0]).await.len(), RACERS as usize + 1);
}

/// Whoever comes first: a key that is revoked bills where it did then, and is never attached after that.
pub async fn a_key_is_not_attached_once_it_is_revoked_however_they_race<D: TestDatabase>(database: Arc<D>) {
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    let (hale, ward) = (account(&stores[0], "Hale").await.id, account(&stores[0], "Ward").await.id);
    for round in 0..10 {
        let prefix = key(&stores[0], Some(hale)).await.prefix;
        let spawned = |store: usize, deed: AccountDeed| {
            let (store, people) = (Arc::clone(&stores[store]), Arc::clone(&people));
            tokio::spawn(async move { store.accounts.do_with_account(firm_permit(&people.ruth), deed).await })
        };
        let attach = spawned(round % 2, AccountDeed::AttachKey { key: prefix.clone(), account: ward });
        let revoke = spawned(1 - round % 2, AccountDeed::RevokeKey(prefix.clone()));
        let (attached, revoked) = (attach.await.unwrap(), revoke.await.unwrap());
        assert!(revoked.unwrap().event.is_some());
        let found = stores[0].keys.key_with_prefix(&prefix).await.unwrap().unwrap().key;
        assert_eq!(found.state, KeyState::Revoked { at: NOON });
        let (at_hale, at_ward) =
            (read(&stores[0], &people, hale).await.events, read(&stores[0], &people, ward).await.events);
        let revoking = format!("revoked the key {prefix}");
        match attached {
            Ok(_) => {
                assert_eq!(found.account, Some(ward));
                assert_eq!(at_ward[0].deed, revoking);
                assert_eq!(at_ward[1].deed, format!("moved the key {prefix} here from Hale"));
            }
            Err(AccountError::KeyRevoked(_)) => {
                assert_eq!(found.account, Some(hale));
                assert_eq!(at_hale[0].deed, revoking);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A key that is made while its account is closed is there before the closing, or not at all.
pub async fn no_key_is_made_on_an_account_after_it_was_closed<D: TestDatabase>(database: Arc<D>) {
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    for round in 0..10 {
        let id = account(&stores[0], &format!("Hale {round}")).await.id;
        let spawned = |store: usize, deed: AccountDeed| {
            let (store, people) = (Arc::clone(&stores[store]), Arc::clone(&people));
            tokio::spawn(async move { store.accounts.do_with_account(firm_permit(&people.ruth), deed).await })
        };
        let make = spawned(round % 2, AccountDeed::MakeKey(new_key(Some(id))));
        let close = spawned(1 - round % 2, AccountDeed::Close(id));
        let (made, closed) = (make.await.unwrap(), close.await.unwrap());
        assert!(closed.unwrap().event.is_some());
        let record = read(&stores[0], &people, id).await;
        match made {
            Ok(_) => assert_eq!((record.keys.len(), words(&record.events)[0]), (1, "closed the account")),
            Err(AccountError::AccountClosed(_)) => {
                assert!(record.keys.is_empty() && record.events.len() == 2);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub async fn raw_sql_cannot_change_or_remove_a_line_of_the_history<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let id = the_account(done(&store, &people, AccountDeed::Make(new_account("Hale"))).await).id;
    let before = read(&store, &people, id).await.events;
    for sql in ["UPDATE account_events SET detail = 'nothing'", "DELETE FROM account_events"] {
        let error = database.raw(sql).await.unwrap_err();
        assert!(error.to_string().contains("never changed"), "{error}");
    }
    assert_eq!(read(&store, &people, id).await.events, before);
}

pub async fn hostile_labels_and_names_in_the_history_come_back_unchanged<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let id = account(&store, "Hale").await.id;
    let prefix = key(&store, Some(id)).await.prefix;
    for text in HOSTILE {
        let deed = AccountDeed::LabelKey { key: prefix.clone(), label: text.to_owned() };
        assert_eq!(the_key(done(&store, &people, deed).await).label, text);
        let record = read(&store, &people, id).await;
        assert_eq!(record.keys[0].key.label, text);
        assert!(record.events[0].deed.ends_with(&format!("to “{text}”")), "{:?}", record.events[0]);
    }
    let at = after_s(5);
    let permit = crate::firm::POLICY
        .decide::<ManageAccounts>(&asking(crate::firm::asker(&people.ruth), at), TheFirm)
        .unwrap();
    store.accounts.do_with_account(permit, AccountDeed::RevokeKey(prefix)).await.unwrap();
    assert_eq!(read(&store, &people, id).await.events[0].at, at);
}
