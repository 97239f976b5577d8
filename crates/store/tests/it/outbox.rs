//! Conformance: messages are claimed by one process at a time, retried until they expire, and each alert is sent once.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{NOON, account, new_key, row};
use chancery_domain::{
    AccountId, EmailAddress, KeyLimits, LimitScope, LocalPath, Month, Nanos, OsRandomness, Principal,
    RequestId, SecretToken, UnixMillis,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageAccounts, Permit, Policy};
use chancery_store::{
    ActivityBatch, Alert, AlertKind, AlertPeriod, AlertSubject, CapChange, CapRejection, LimitsChange,
    ListedWebhook, MAX_WEBHOOKS, MailboxProof, MessageKind, NewKey, NewMessage, PasswordHash, ProofPurpose,
    SendOutcome, SentEmailCode, Store, Webhook, WebhookError, WebhookSecret, code_email_id,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const EVENTS: (MessageKind, Option<&str>) = (MessageKind::Webhook, None);
const ALL: u32 = 1_000;

pub fn message(number: usize) -> NewMessage {
    NewMessage {
        kind: MessageKind::Webhook,
        destination: "wh_one".to_owned(),
        event_id: format!("evt_{number:03}"),
        payload: format!("{{\"number\":{number}}}"),
        created_at: NOON,
        expires_at: NOON.after(24 * 60 * MINUTE),
    }
}

fn claim() -> SecretToken {
    SecretToken::generate(&OsRandomness)
}

pub fn permit() -> Permit<ManageAccounts> {
    let request_id = RequestId::new(NOON, &OsRandomness);
    let authz_request = AuthzRequest { by: Principal::Operator, at: NOON, request_id };
    Policy::load().unwrap().decide(&authz_request, FirmResource).unwrap()
}

pub fn webhook(number: usize) -> Webhook {
    Webhook {
        id: format!("wh_{number:03}"),
        url: "https://example.com/hooks?a=b&c=ü".to_owned(),
        secret: WebhookSecret::from_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()),
        created_at: UnixMillis(NOON.0 + number as i64),
        disabled_at: None,
    }
}

pub async fn concurrent_claims_give_each_message_to_one_process(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await, database.open().await];
    let messages: Vec<NewMessage> = (0..60).map(message).collect();
    stores[0].outbox.enqueue_messages(&messages).await.unwrap();
    let mut racing = Vec::new();
    for number in 0..12 {
        let store = Arc::clone(&stores[number % 3]);
        racing.push(tokio::spawn(async move {
            store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 10).await.unwrap()
        }));
    }
    let (mut claimed, mut ids) = (0, BTreeSet::new());
    for outcome in racing {
        for message in outcome.await.unwrap() {
            claimed += 1;
            assert_eq!(message.attempt, 1);
            ids.insert(message.message.event_id);
        }
    }
    assert_eq!(claimed, ids.len(), "no message was claimed twice");
    // PostgreSQL skips rows that another node is claiming, so a racer may have got fewer.
    let rest = stores[0].outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 60).await.unwrap();
    assert_eq!(claimed + rest.len(), 60);
}

pub async fn message_is_enqueued_once_per_destination(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    assert_eq!(store.outbox.next_attempt_at().await.unwrap(), None);
    let other =
        NewMessage { destination: "ann@example.com".to_owned(), kind: MessageKind::Email, ..message(1) };
    store.outbox.enqueue_messages(&[message(1), other.clone()]).await.unwrap();
    store.outbox.enqueue_messages(&[message(1)]).await.unwrap();
    assert_eq!(store.outbox.next_attempt_at().await.unwrap(), Some(NOON));
    let mut claimed =
        store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 10).await.unwrap();
    let emails = (MessageKind::Email, None);
    claimed
        .extend(store.outbox.claim_messages(emails, &claim(), NOON, NOON.after(MINUTE), 10).await.unwrap());
    let mut found: Vec<NewMessage> = claimed.into_iter().map(|claimed| claimed.message).collect();
    found.sort_by(|one, two| one.destination.cmp(&two.destination));
    assert_eq!(found, [other, message(1)]);
}

pub async fn ended_claim_passes_the_message_on_with_the_same_id(database: Arc<AnyDatabase>) {
    let (store, other) = (database.open().await, database.open().await);
    store.outbox.enqueue_messages(&[message(1)]).await.unwrap();
    let first = store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 10).await.unwrap();
    let early = UnixMillis(NOON.after(MINUTE).0 - 1);
    assert!(
        other
            .outbox
            .claim_messages(EVENTS, &claim(), early, early.after(MINUTE), 10)
            .await
            .unwrap()
            .is_empty()
    );
    let later = NOON.after(MINUTE);
    let second = other.outbox.claim_messages(EVENTS, &claim(), later, later.after(MINUTE), 10).await.unwrap();
    assert_eq!(second[0].message, first[0].message);
    assert_eq!((first[0].attempt, second[0].attempt), (1, 2));
    let late = store.outbox.finish_message(&first[0], &SendOutcome::Sent, later).await.unwrap();
    assert!(!late, "the first claim has ended");
    assert!(other.outbox.finish_message(&second[0], &SendOutcome::Sent, later).await.unwrap());
    let much_later = later.after(60 * MINUTE);
    let none = store
        .outbox
        .claim_messages(EVENTS, &claim(), much_later, much_later.after(MINUTE), 10)
        .await
        .unwrap();
    assert!(none.is_empty(), "sent is sent");
}

pub async fn failed_message_is_due_again_at_its_retry_time(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    store.outbox.enqueue_messages(&[message(1), message(2)]).await.unwrap();
    let claimed = store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 10).await.unwrap();
    let at = NOON.after(5 * MINUTE);
    let retry = SendOutcome::Retry { at, error: "HTTP 500\0".to_owned() };
    assert!(store.outbox.finish_message(&claimed[0], &retry, NOON).await.unwrap());
    let given_up = SendOutcome::Failed { error: "x".repeat(10_000) };
    assert!(store.outbox.finish_message(&claimed[1], &given_up, NOON).await.unwrap());
    assert_eq!(store.outbox.next_attempt_at().await.unwrap(), Some(at));
    let due = store.outbox.claim_messages(EVENTS, &claim(), at, at.after(MINUTE), 10).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].attempt, &due[0].message), (2, &claimed[0].message));
}

pub async fn finished_messages_are_deleted_and_pending_ones_stay(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    store.outbox.enqueue_messages(&[message(1), message(2), message(3)]).await.unwrap();
    for claimed in store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 2).await.unwrap() {
        store.outbox.finish_message(&claimed, &SendOutcome::Sent, NOON).await.unwrap();
    }
    let before = UnixMillis(NOON.0 - 1);
    assert_eq!(store.outbox.delete_finished_messages(before, 10).await.unwrap(), 0);
    assert_eq!(store.outbox.delete_finished_messages(NOON, 1).await.unwrap(), 1);
    assert_eq!(store.outbox.delete_finished_messages(NOON, 10).await.unwrap(), 1);
    assert_eq!(store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON, 10).await.unwrap().len(), 1);
}

pub async fn messages_of_one_webhook_are_claimed_and_postponed_alone(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let of = |webhook: &str, number| NewMessage { destination: webhook.to_owned(), ..message(number) };
    let expiring = NewMessage { expires_at: NOON.after(MINUTE / 2), ..of("wh_one", 3) };
    let messages = [of("wh_one", 1), of("wh_one", 2), expiring, of("wh_two", 4)];
    store.outbox.enqueue_messages(&messages).await.unwrap();
    assert_eq!(store.outbox.due_webhooks(NOON).await.unwrap(), ["wh_one", "wh_two"]);
    let one = (MessageKind::Webhook, Some("wh_one"));
    let claimed = store.outbox.claim_messages(one, &claim(), NOON, NOON.after(5 * MINUTE), 1).await.unwrap();
    assert_eq!((claimed.len(), claimed[0].message.destination.as_str()), (1, "wh_one"));
    let postponed = store.outbox.postpone_webhook_messages("wh_one", NOON, NOON.after(MINUTE)).await.unwrap();
    assert_eq!(postponed, 2, "not the one that is being sent");
    assert_eq!(store.outbox.due_webhooks(NOON).await.unwrap(), ["wh_two"]);
    let due = async |at: UnixMillis| {
        store.outbox.claim_messages(one, &claim(), at, at.after(60 * MINUTE), 10).await.unwrap().len()
    };
    let (expiry, minute) = (NOON.after(MINUTE / 2), NOON.after(MINUTE));
    let early = due(expiry).await;
    assert!(early <= 1, "only the one that expires then");
    assert_eq!(early + due(minute).await, 2, "each gets its last attempt");
    assert_eq!(store.webhooks.webhook_errors().await.unwrap().len(), 0);
    let retry = SendOutcome::Retry { at: minute, error: "no reply within 10 seconds".to_owned() };
    assert!(store.outbox.finish_message(&claimed[0], &retry, NOON).await.unwrap());
    let errors = store.webhooks.webhook_errors().await.unwrap();
    assert_eq!(errors.get("wh_one").map(String::as_str), Some("no reply within 10 seconds"));
}

pub async fn unsent_email_with_a_dead_code_is_deleted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let email: EmailAddress = "maya@example.com".parse().unwrap();
    let (token, other) = (claim(), claim());
    let code = |token: &SecretToken, code: &str, sent| SentEmailCode {
        hash: token.hash_with(code),
        expires_at: NOON.after(10 * MINUTE),
        sent,
        sent_at: NOON,
    };
    let enqueue = async |code: &SentEmailCode| {
        let destination = email.as_str().to_owned();
        let event_id = code_email_id(&code.hash);
        let message = NewMessage { kind: MessageKind::Email, destination, event_id, ..message(1) };
        store.outbox.enqueue_messages(&[message]).await.unwrap();
    };
    let begin = async |token: &SecretToken, code: SentEmailCode| {
        let return_to = LocalPath::parse("/").unwrap();
        let proof =
            MailboxProof { purpose: ProofPurpose::NewPassword, email: email.clone(), return_to, code };
        store.proofs.begin_proof(token.hash(), proof).await.unwrap();
        enqueue(&code).await;
    };
    let waits = async || store.outbox.next_attempt_at().await.unwrap().is_some();
    let (first, second) = (code(&token, "111111", 1), code(&token, "222222", 2));
    begin(&token, first).await;
    assert!(waits().await);
    assert!(store.proofs.replace_proof_code(token.hash(), second).await.unwrap());
    assert!(!waits().await, "replaced");
    enqueue(&second).await;
    assert!(!store.proofs.replace_proof_code(token.hash(), second).await.unwrap());
    assert!(waits().await, "the loser of a race deletes nothing");
    assert!(!store.proofs.consume_proof(token.hash(), first.hash).await.unwrap());
    assert!(waits().await);
    assert!(store.proofs.consume_proof(token.hash(), second.hash).await.unwrap());
    assert!(!waits().await, "used");
    let (third, fourth) = (code(&token, "333333", 1), code(&other, "444444", 1));
    begin(&token, third).await;
    begin(&other, fourth).await;
    let hash = PasswordHash("none".to_owned());
    let changed = store.provider_accounts.set_proven_password(token.hash(), third.hash, &email, &hash).await;
    assert!(changed.unwrap().is_none(), "there is no such account");
    assert!(!waits().await, "all codes of the mailbox are dead");
}

pub async fn webhooks_are_bounded_audited_and_removed_with_their_messages(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for number in 0..MAX_WEBHOOKS as usize {
        store.webhooks.add_webhook(permit(), &webhook(number)).await.unwrap();
    }
    let one_more = store.webhooks.add_webhook(permit(), &webhook(99)).await;
    assert!(matches!(one_more, Err(WebhookError::TooManyWebhooks)), "{one_more:?}");
    let listed = store.webhooks.list_webhooks().await.unwrap();
    assert_eq!(listed.len(), MAX_WEBHOOKS as usize);
    for (number, listed) in listed.into_iter().enumerate() {
        let Webhook { id, url, created_at, disabled_at, .. } = webhook(number);
        assert_eq!(listed, ListedWebhook { id, url, created_at, disabled_at });
        assert_eq!(store.webhooks.webhook_by_id(&listed.id).await.unwrap(), Some(webhook(number)));
    }
    let waiting = NewMessage { destination: "wh_001".to_owned(), ..message(1) };
    store.outbox.enqueue_messages(&[waiting]).await.unwrap();
    store.webhooks.remove_webhook(permit(), "wh_001").await.unwrap();
    assert_eq!(store.outbox.next_attempt_at().await.unwrap(), None);
    assert_eq!(store.webhooks.webhook_by_id("wh_001").await.unwrap(), None);
    let again = store.webhooks.remove_webhook(permit(), "wh_001").await;
    assert!(matches!(again, Err(WebhookError::NoSuchWebhook(_))), "{again:?}");
    store.webhooks.disable_webhook("wh_002", NOON).await.unwrap();
    let disabled = store.webhooks.webhook_to_test(permit(), "wh_002").await.unwrap();
    assert_eq!(disabled.disabled_at, Some(NOON));
}

pub fn alert(account: AccountId, kind: AlertKind) -> Alert {
    let period = AlertPeriod::Month(Month::containing(NOON));
    Alert { subject: AlertSubject::Account(account), kind, period, cap: Nanos(1_000) }
}

pub async fn racing_nodes_send_each_alert_once(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await, database.open().await];
    let account = account(&stores[0], "Hale & Ward").await.id;
    let (half, most) = (AlertKind::Spent { percent: 50 }, AlertKind::Spent { percent: 80 });
    let mut racing = Vec::new();
    for number in 0..12 {
        let store = Arc::clone(&stores[number % 3]);
        racing.push(tokio::spawn(async move {
            let replaced = [alert(account, half)];
            store.alerts.send_alert(&alert(account, most), &replaced, &[message(number)], NOON).await.unwrap()
        }));
    }
    let mut sent = 0;
    for outcome in racing {
        sent += usize::from(outcome.await.unwrap());
    }
    assert_eq!(sent, 1);
    let store = &stores[0];
    let messages = store.outbox.claim_messages(EVENTS, &claim(), NOON, NOON.after(MINUTE), 20).await.unwrap();
    assert_eq!(messages.len(), 1, "the losers enqueued nothing");
    let month = alert(account, most).period;
    let sent = store.alerts.sent_alerts(month, month).await.unwrap();
    assert!(sent.contains(&alert(account, most)));
    assert!(sent.contains(&alert(account, half)), "replaced by the higher one");
    let new_cap = Alert { cap: Nanos(2_000), ..alert(account, most) };
    assert!(!sent.contains(&new_cap), "a new cap has alerts of its own");
    let next_month = AlertPeriod::Month(Month::containing(NOON).next());
    let sent = store.alerts.sent_alerts(next_month, next_month).await.unwrap();
    assert!(!sent.contains(&alert(account, most)));
    assert!(store.alerts.delete_old_alerts(NOON).await.unwrap() >= 2);
    assert!(!store.alerts.sent_alerts(month, month).await.unwrap().contains(&alert(account, most)));
}

pub async fn periodic_task_runs_on_one_node_at_a_time(database: Arc<AnyDatabase>) {
    let (store, other) = (database.open().await, database.open().await);
    let is_claimed = async |store: &Arc<Store>, name: &str, now| {
        store.alerts.claim_periodic_task(name, now, MINUTE).await.unwrap()
    };
    assert!(is_claimed(&store, "alerts", NOON).await);
    assert!(!is_claimed(&other, "alerts", NOON).await);
    assert!(is_claimed(&other, "other", NOON).await);
    assert!(is_claimed(&other, "alerts", NOON.after(MINUTE)).await);
    assert!(is_claimed(&store, "alerts", UnixMillis(NOON.0 - 1)).await, "the clock was set back");
}

pub async fn capped_spending_names_account_key_and_rejections(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let hale = account(&store, "Hale & Ward").await;
    account(&store, "No cap").await;
    let limits = KeyLimits { spend_per_month: Some(Nanos(500_000)), ..KeyLimits::default() };
    let capped = store.create_key(limited_key(hale.id, limits)).await.unwrap();
    let change =
        LimitsChange { spend_per_month: CapChange::Set(Nanos(1_000_000)), ..LimitsChange::default() };
    store.set_limits(&hale.name, change).await.unwrap();
    let usage = row(1, (hale.id, capped.id));
    let cost = usage.cost;
    let month = Month::containing(usage.at);
    store.ledger.settle(usage.into()).await.unwrap();
    let rejected = CapRejection { subject: AlertSubject::Key(capped.id), month, cap: Nanos(500_000) };
    let batch = ActivityBatch { cap_rejections: &[(rejected, NOON), (rejected, NOON)], ..Default::default() };
    store.activity.record_activity(batch).await.unwrap();
    let found = store.alerts.capped_spending(month, None, ALL).await.unwrap();
    assert_eq!(found.len(), 2);
    let [of_account, of_key] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((of_account.subject, of_account.has_rejected), (AlertSubject::Account(hale.id), false));
    assert_eq!((of_account.cap, of_account.spent), (Nanos(1_000_000), cost));
    assert_eq!((of_key.subject, of_key.has_rejected), (AlertSubject::Key(capped.id), true));
    assert_eq!((of_key.cap, of_key.spent), (Nanos(500_000), cost));
    assert_eq!(of_key.subject.scope(), LimitScope::Key);
    assert_eq!(of_key.names.account, Some(hale.name.clone()));
    assert_eq!(of_key.names.key, Some((capped.prefix, "a label".to_owned())));
    let pages = [None, Some(of_account.subject), Some(of_key.subject)].map(|after| (after, 1));
    let mut paged = Vec::new();
    for (after, limit) in pages {
        paged.extend(store.alerts.capped_spending(month, after, limit).await.unwrap());
    }
    assert_eq!(paged, found, "page by page");
    let next_month = store.alerts.capped_spending(month.next(), None, ALL).await.unwrap();
    assert!(next_month.iter().all(|found| found.spent == Nanos(0) && !found.has_rejected));
}

pub async fn expiring_keys_are_active_and_within_the_period(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let hale = account(&store, "Hale & Ward").await;
    let expires =
        |minutes: u32| KeyLimits { expires_at: Some(NOON.after(minutes * MINUTE)), ..KeyLimits::default() };
    let soon = store.create_key(limited_key(hale.id, expires(10))).await.unwrap();
    store.create_key(limited_key(hale.id, expires(0))).await.unwrap();
    store.create_key(limited_key(hale.id, expires(21))).await.unwrap();
    store.create_key(new_key(Some(hale.id))).await.unwrap();
    let revoked = store.create_key(limited_key(hale.id, expires(10))).await.unwrap();
    store.revoke_key(&revoked.prefix, NOON).await.unwrap();
    let found = store.alerts.expiring_keys((NOON, NOON.after(20 * MINUTE)), None, ALL).await.unwrap();
    assert_eq!(found.iter().map(|found| found.key).collect::<Vec<_>>(), [soon.id]);
    assert_eq!(found[0].expires_at, NOON.after(10 * MINUTE));
    let more = store.alerts.expiring_keys((NOON, NOON.after(20 * MINUTE)), Some(soon.id), ALL).await.unwrap();
    assert!(more.is_empty(), "{more:?}");
}

/// A new key with limits of its own.
fn limited_key(account: AccountId, limits: KeyLimits) -> NewKey {
    NewKey { limits, ..new_key(Some(account)) }
}
