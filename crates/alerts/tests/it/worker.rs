//! The worker, with receivers that reply and receivers that do not.

use super::firm::{NOON, TestFirm};
use chancery_alerts::{OutboxWorker, WebhookClient};
use chancery_domain::{Clock, OsRandomness, UnixMillis};
use chancery_mail::{MailRoute, Mailer};
use chancery_store::{MessageKind, NewMessage};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Shorter than the time-out of a webhook.
const SOON: Duration = Duration::from_secs(8);

struct Receiver {
    url: String,
    events: Arc<AtomicUsize>,
}

impl Receiver {
    async fn start(is_hung: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hooks", listener.local_addr().unwrap());
        let events = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&events);
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut received = Vec::new();
                while !received.ends_with(b"}") {
                    let mut chunk = [0; 1_024];
                    match stream.read(&mut chunk).await {
                        Ok(length) if length > 0 => received.extend_from_slice(&chunk[..length]),
                        _ => break,
                    }
                }
                counter.fetch_add(1, Ordering::SeqCst);
                match is_hung {
                    true => open.push(stream),
                    false => {
                        let reply = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                        stream.write_all(reply).await.unwrap();
                    }
                }
            }
        });
        Self { url, events }
    }

    fn count(&self) -> usize {
        self.events.load(Ordering::SeqCst)
    }
}

fn event(webhook: &str, number: usize) -> NewMessage {
    NewMessage {
        kind: MessageKind::Webhook,
        destination: webhook.to_owned(),
        event_id: format!("evt_{number}"),
        payload: "{\"type\":\"x\"}".to_owned(),
        created_at: NOON,
        expires_at: NOON.after(DAY),
    }
}

fn email(event_id: &str, expires_at: UnixMillis) -> NewMessage {
    NewMessage {
        kind: MessageKind::Email,
        destination: "ann@example.com".to_owned(),
        event_id: event_id.to_owned(),
        payload: "{\"subject\":\"Hello\",\"text\":\"hello\\n\"}".to_owned(),
        created_at: NOON,
        expires_at,
    }
}

/// Starts a worker that puts emails into the folder.
fn start_worker(firm: &TestFirm, folder: &std::path::Path) {
    let clock: Arc<dyn Clock> = firm.clock.clone();
    let (route, from) = (MailRoute::Outbox(folder.to_owned()), "portal@example.com".parse().unwrap());
    let mailer = Arc::new(Mailer::new(&route, &from, "Firm", Arc::clone(&clock)).unwrap());
    let webhooks = WebhookClient::new(["127.0.0.1"].iter().map(|text| text.parse().unwrap()).collect());
    let worker = OutboxWorker::new(firm.store.alerting(), mailer, webhooks, clock, Arc::new(OsRandomness));
    tokio::spawn(Arc::new(worker).run(CancellationToken::new()));
}

async fn eventually(what: &str, limit: Duration, is_true: impl AsyncFn() -> bool) {
    let waited = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(limit, waited).await.is_ok(), "{what}");
}

#[tokio::test]
async fn hung_receiver_delays_neither_other_receivers_nor_emails() {
    let firm = TestFirm::on_sqlite().await;
    let (hung, healthy) = (Receiver::start(true).await, Receiver::start(false).await);
    firm.webhook("wh_hung", &hung.url).await;
    firm.webhook("wh_well", &healthy.url).await;
    let mut messages: Vec<NewMessage> = (0..40).map(|number| event("wh_hung", number)).collect();
    messages.extend((0..10).map(|number| event("wh_well", number)));
    messages.push(email("evt_email", NOON.after(DAY)));
    firm.store.outbox.enqueue_messages(&messages).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let emails = folder.path().join("outbox");
    start_worker(&firm, &emails);
    let email_count = || std::fs::read_dir(&emails).map_or(0, Iterator::count);
    eventually("the others were not delayed", SOON, async || healthy.count() == 10 && email_count() == 1)
        .await;
    assert!(hung.count() <= 2, "{}", hung.count());
    let is_paused = async || {
        let due = firm.store.outbox.due_webhooks(NOON).await.unwrap();
        !due.iter().any(|webhook| webhook == "wh_hung")
    };
    eventually("a time-out postpones the rest", 3 * SOON, is_paused).await;
    assert!(hung.count() <= 4, "{}", hung.count());
}

#[tokio::test]
async fn late_alert_is_still_sent_and_a_late_code_is_not() {
    let firm = TestFirm::on_sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let emails = folder.path().join("outbox");
    let expires_at = NOON.after(Duration::from_secs(60));
    let messages = [email("evt_alert", expires_at), email("eml_code", expires_at)];
    firm.store.outbox.enqueue_messages(&messages).await.unwrap();
    firm.clock.advance(Duration::from_secs(600));
    start_worker(&firm, &emails);
    let is_done = async || firm.store.outbox.next_attempt_at().await.unwrap().is_none();
    eventually("both are finished", SOON, is_done).await;
    let files: Vec<_> = std::fs::read_dir(&emails).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let text = std::fs::read_to_string(&files[0]).unwrap();
    assert!(text.contains("Message-ID: <evt_alert."), "{text}");
}
