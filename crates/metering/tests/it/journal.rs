//! The usage journal: an outage of the database at the end of a stream loses no row of delivered text, whether the process goes
//! on, is stopped or is killed.

use crate::protocol::{end, send_one_word_then_wait};
use crate::spending::cap;
use crate::{Fixture, call, unlock};
use chancery_domain::{
    Clock, Fingerprint, IdempotencyKey, Nanos, OsRandomness, RequestId, StopReason, UnixMillis, UsageRow,
};
use chancery_metering::limits::MAX_UNRECORDED_REQUESTS;
use chancery_metering::{
    Call, GenerationStream, Idempotency, Journal, JournalStatus, Meter, MeterError, Models, ReplaySummary,
    Reply, StreamEvent, open_limiter,
};
use chancery_store::{
    ClaimOutcome, DatabaseUrl, KeyClaim, LEASE_DURATION, ReserveOutcome, Settlement, SpendingReservation,
    Store, StoredReply,
};
use chancery_test_support::RawConnection;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Six input tokens at 1,000 nano-units and one output token at 2,000.
const COST: i64 = 6 * 1_000 + 2_000;
const MAX_COST: i64 = 6 * 1_000 + 50 * 2_000;

/// Longer than a row waits for the database, and shorter than the retries without a journal.
const JOURNALED_WITHIN: Duration = Duration::from_secs(15);

const WRITTEN: ReplaySummary = ReplaySummary { written: 1, rejected: 0, waiting: 0 };

/// A database that another process locks on request, and an engine that ends its reply on request.
struct Outage {
    fixture: Fixture,
    go: Arc<AtomicBool>,
}

impl Outage {
    async fn new() -> Self {
        let go = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&go);
        let fixture = Fixture::with(move |_, sink| {
            sink.text("Dear");
            while !is_over.load(Ordering::SeqCst) && !sink.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let reason = if sink.is_cancelled() { StopReason::Cancelled } else { StopReason::Complete };
            end(sink, reason, 1);
        });
        Self { fixture: with_journal(fixture.await), go }
    }

    fn folder(&self) -> PathBuf {
        self.fixture.database_file().parent().unwrap().to_owned()
    }

    fn keyed_call(&self) -> Call {
        let (id, request) = self.fixture.new_request();
        Call { idempotency: Some(idempotency()), ..call(&self.fixture.caller, id, request) }
    }

    /// The stream's text has been read when the database fails, and the reply ends after that.
    async fn stream_into_outage(&self, call: Call) -> (Reply, RawConnection) {
        let mut stream = self.stream(call).await;
        let database = self.fixture.lock_database().await;
        self.go.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(JOURNALED_WITHIN, stream.next()).await.unwrap();
        let StreamEvent::Ended(Ok(reply)) = ended else { panic!("{ended:?}") };
        assert_eq!(self.fixture.meter.journaled_requests(), 1);
        (reply, database)
    }

    async fn stream(&self, call: Call) -> GenerationStream {
        let mut stream = self.fixture.meter.stream(call).await.unwrap();
        assert!(matches!(stream.next().await, StreamEvent::Text { text, .. } if text == "Dear"));
        stream
    }

    /// The process ends during the outage. What it had queued for the database is lost with it.
    async fn crash(&self, database: RawConnection) {
        self.fixture.store.close().await;
        unlock(database).await;
    }

    /// The next process on the same database and data directory.
    async fn restart(&self) -> Meter {
        meter_on(&self.folder(), self.fixture.another_process().await, self.fixture.clock.clone()).await
    }

    /// Input tokens, output tokens and stop reason of each row.
    async fn rows(&self) -> Vec<(u32, u32, &'static str)> {
        let store = self.fixture.another_process().await;
        let rows = store.ledger_chains.ledger_rows(None, 100).await.unwrap();
        store.close().await;
        rows.iter().map(|row| (row.input_tokens, row.output_tokens, row.stop_reason.as_str())).collect()
    }

    /// Another process, which takes the first one for dead; and the time on its clock.
    async fn process_after_the_lease(&self) -> (Arc<Store>, UnixMillis) {
        let now = UnixMillis(self.fixture.clock.now().0 + LEASE_DURATION.as_millis() as i64);
        (self.fixture.another_process().await, now)
    }
}

fn with_journal(mut fixture: Fixture) -> Fixture {
    let folder = fixture.database_file().parent().unwrap().to_owned();
    let meter = Arc::into_inner(fixture.meter).unwrap();
    fixture.meter = Arc::new(meter.with_journal(Journal::open(&folder).unwrap()));
    fixture
}

async fn meter_on(folder: &Path, store: Arc<Store>, clock: Arc<dyn Clock>) -> Meter {
    let limiter = open_limiter(&"memory".parse().unwrap(), Arc::clone(&clock)).await.unwrap();
    let meter =
        Meter::new(Models::new([]), Arc::new(store.metering()), limiter, clock, Arc::new(OsRandomness));
    meter.with_journal(Journal::open(folder).unwrap())
}

fn idempotency() -> Idempotency {
    Idempotency { key: "order-17".parse().unwrap(), fingerprint: Fingerprint::of("/v1/generate", b"{}") }
}

#[tokio::test]
async fn stream_ends_in_an_outage_once_its_usage_is_journaled() {
    let outage = Outage::new().await;
    let (id, request) = outage.fixture.new_request();
    let (reply, database) = outage.stream_into_outage(call(&outage.fixture.caller, id, request)).await;
    assert_eq!((reply.output_text.as_str(), reply.output_tokens), ("Dear", 1));
    assert_eq!(Journal::status(&outage.folder()).unwrap(), JournalStatus { waiting: 1, rejected: 0 });
    unlock(database).await;
    // While the process runs, it writes the row by itself.
    let meter = Arc::clone(&outage.fixture.meter);
    let replaying = tokio::spawn(async move { meter.run_journal_replay().await });
    while outage.fixture.meter.unrecorded_requests() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    replaying.abort();
    assert_eq!(outage.fixture.rows().await, [(6, 1, "complete")]);
    assert_eq!(Journal::status(&outage.folder()).unwrap(), JournalStatus::default());
}

#[tokio::test]
async fn crash_in_an_outage_bills_delivered_text_once_at_the_next_start() {
    let outage = Outage::new().await;
    let (id, request) = outage.fixture.new_request();
    let (_, database) = outage.stream_into_outage(call(&outage.fixture.caller, id, request)).await;
    let file = outage.folder().join(chancery_metering::JOURNAL_FILE);
    let journal = std::fs::read(&file).unwrap();
    outage.crash(database).await;
    assert_eq!(outage.restart().await.replay_journal().await, WRITTEN);
    assert_eq!(outage.rows().await, [(6, 1, "complete")]);
    // It crashed after the row was committed and before the entry was removed.
    std::fs::write(&file, journal).unwrap();
    assert_eq!(outage.restart().await.replay_journal().await, WRITTEN);
    assert_eq!(outage.rows().await, [(6, 1, "complete")]);
    assert_eq!(outage.restart().await.replay_journal().await, ReplaySummary::default());
}

#[tokio::test]
async fn shutdown_in_an_outage_journals_the_text_of_readers_who_hung_up() {
    let outage = Outage::new().await;
    let (id, request) = outage.fixture.new_request();
    let stream = outage.stream(call(&outage.fixture.caller, id, request)).await;
    let database = outage.fixture.lock_database().await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(300)).await;
    outage.fixture.meter.stop_admitting();
    outage.fixture.meter.abandon_running();
    // As long as the binary waits for abandoned requests.
    let settled = outage.fixture.meter.wait_until_settled();
    tokio::time::timeout(Duration::from_secs(2), settled).await.unwrap();
    outage.crash(database).await;
    assert_eq!(outage.restart().await.replay_journal().await, WRITTEN);
    assert_eq!(outage.rows().await, [(6, 1, "cancelled")]);
}

/// Nothing of it was delivered, so nothing is lost.
#[tokio::test]
async fn whole_reply_in_an_outage_is_held_back_and_not_journaled() {
    let outage = Outage::new().await;
    let database = outage.fixture.lock_database().await;
    outage.go.store(true, Ordering::SeqCst);
    let (id, request) = outage.fixture.new_request();
    let error = outage.fixture.meter.generate(call(&outage.fixture.caller, id, request)).await.unwrap_err();
    assert!(matches!(error, MeterError::UsageNotRecorded { .. }), "{error}");
    assert_eq!(outage.fixture.meter.journaled_requests(), 0);
    unlock(database).await;
}

#[tokio::test]
async fn journaled_requests_stop_admission_until_they_are_replayed() {
    let mut fixture = with_journal(Fixture::with(|_, sink| send_one_word_then_wait(sink)).await);
    fixture.caller.limits.requests_per_min = 1_000;
    let database = fixture.lock_database().await;
    let calls: Vec<_> = (0..MAX_UNRECORDED_REQUESTS).map(|_| fixture.spawn_request()).collect();
    while fixture.meter.running_requests() < MAX_UNRECORDED_REQUESTS {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    fixture.settled().await;
    assert_eq!(fixture.meter.journaled_requests(), MAX_UNRECORDED_REQUESTS);
    assert!(fixture.meter.can_record().is_err());
    // The database still fails: nothing is lost by trying.
    let waiting = MAX_UNRECORDED_REQUESTS;
    assert_eq!(fixture.meter.replay_journal().await, ReplaySummary { waiting, ..ReplaySummary::default() });
    unlock(database).await;
    let written = MAX_UNRECORDED_REQUESTS;
    assert_eq!(fixture.meter.replay_journal().await, ReplaySummary { written, ..ReplaySummary::default() });
    fixture.admitting().await;
    assert_eq!(fixture.rows().await.len(), MAX_UNRECORDED_REQUESTS);
}

#[tokio::test]
async fn journaled_reply_holds_its_idempotency_key_until_it_is_replayed() {
    let outage = Outage::new().await;
    let (reply, database) = outage.stream_into_outage(outage.keyed_call()).await;
    outage.crash(database).await;
    let meter = Arc::new(outage.restart().await);
    let early = meter.generate(outage.keyed_call()).await;
    assert!(matches!(early, Err(MeterError::IdempotencyInFlight)), "{early:?}");
    assert_eq!(meter.replay_journal().await, WRITTEN);
    let replay = meter.generate(outage.keyed_call()).await.unwrap();
    assert!(replay.is_replay);
    assert_eq!((replay.id, replay.output_text), (reply.id, reply.output_text));
    assert_eq!(outage.rows().await.len(), 1);
}

#[tokio::test]
async fn journaled_text_is_billed_even_if_others_used_up_the_spending_cap() {
    let mut outage = Outage::new().await;
    cap(&mut outage.fixture, MAX_COST).await;
    let (id, request) = outage.fixture.new_request();
    let (_, database) = outage.stream_into_outage(call(&outage.fixture.caller, id, request)).await;
    outage.crash(database).await;
    let (other, now) = outage.process_after_the_lease().await;
    let taken = SpendingReservation {
        request_id: outage.fixture.meter.new_request_id(),
        account: outage.fixture.caller.account,
        key: outage.fixture.caller.key,
        amount: Nanos(MAX_COST - COST + 1),
        at: now,
        now,
    };
    assert_eq!(other.spending.reserve_spending(taken).await.unwrap(), ReserveOutcome::Reserved);
    assert_eq!(outage.restart().await.replay_journal().await, WRITTEN);
    assert_eq!(outage.rows().await, [(6, 1, "complete")]);
    other.close().await;
}

fn claim(outage: &Outage, request_id: RequestId, now: UnixMillis) -> KeyClaim {
    let Idempotency { key, fingerprint } = idempotency();
    let expires_at = UnixMillis(now.0 + 1_000_000);
    KeyClaim { account: outage.fixture.caller.account, key, fingerprint, request_id, now, expires_at }
}

#[tokio::test]
async fn journaled_row_waits_while_a_retry_with_its_key_runs_elsewhere() {
    let outage = Outage::new().await;
    let (_, database) = outage.stream_into_outage(outage.keyed_call()).await;
    outage.crash(database).await;
    let (other, now) = outage.process_after_the_lease().await;
    let claim = claim(&outage, outage.fixture.meter.new_request_id(), now);
    assert_eq!(other.idempotency.claim_key(&claim).await.unwrap(), ClaimOutcome::Claimed);
    let meter = outage.restart().await;
    assert_eq!(meter.replay_journal().await, ReplaySummary { waiting: 1, ..ReplaySummary::default() });
    // The retry fails, so the key is free again.
    other.idempotency.release_key(&claim).await.unwrap();
    assert_eq!(meter.replay_journal().await, WRITTEN);
    assert_eq!(outage.rows().await.len(), 1);
    other.close().await;
}

#[tokio::test]
async fn journaled_row_is_moved_aside_if_a_retry_with_its_key_was_billed() {
    let outage = Outage::new().await;
    let (_, database) = outage.stream_into_outage(outage.keyed_call()).await;
    outage.crash(database).await;
    let (other, now) = outage.process_after_the_lease().await;
    let claim = claim(&outage, outage.fixture.meter.new_request_id(), now);
    assert_eq!(other.idempotency.claim_key(&claim).await.unwrap(), ClaimOutcome::Claimed);
    let prices = chancery_domain::Prices::new("1".parse().unwrap(), "2".parse().unwrap()).unwrap();
    let row = UsageRow {
        request_id: claim.request_id.clone(),
        account: claim.account,
        key: outage.fixture.caller.key,
        model: "words".to_owned(),
        input_tokens: 6,
        cached_input_tokens: 0,
        output_tokens: 1,
        prices,
        cost: Nanos(COST),
        at: now,
        stop_reason: StopReason::Complete,
    };
    let key: IdempotencyKey = claim.key.clone();
    let expires_at = claim.expires_at;
    let stored_reply = StoredReply {
        key,
        reasoning_text: String::new(),
        output_text: "Dear".to_owned(),
        logprobs: None,
        reasoning_tokens: 0,
        expires_at,
    };
    let settlement = Settlement { row, is_reserved: false, stored_reply: Some(stored_reply) };
    other.ledger.settle(settlement).await.unwrap();
    let rejected = ReplaySummary { rejected: 1, ..ReplaySummary::default() };
    assert_eq!(outage.restart().await.replay_journal().await, rejected);
    // One row for one key.
    assert_eq!(outage.rows().await.len(), 1);
    assert_eq!(Journal::status(&outage.folder()).unwrap(), JournalStatus { waiting: 0, rejected: 1 });
    other.close().await;
}

#[tokio::test]
async fn row_that_the_ledger_rejects_is_moved_aside() {
    let outage = Outage::new().await;
    let (id, request) = outage.fixture.new_request();
    let (_, database) = outage.stream_into_outage(call(&outage.fixture.caller, id, request)).await;
    unlock(database).await;
    // A database that does not know the account.
    let folder = tempfile::tempdir().unwrap();
    let name = chancery_metering::JOURNAL_FILE;
    std::fs::copy(outage.folder().join(name), folder.path().join(name)).unwrap();
    let url = DatabaseUrl::sqlite_file(&folder.path().join("other.db"));
    let store = Arc::new(Store::open(&url).await.unwrap());
    let meter = meter_on(folder.path(), store, outage.fixture.clock.clone()).await;
    let rejected = ReplaySummary { rejected: 1, ..ReplaySummary::default() };
    assert_eq!(meter.replay_journal().await, rejected);
    assert_eq!(meter.replay_journal().await, ReplaySummary::default());
    assert_eq!(Journal::status(folder.path()).unwrap(), JournalStatus { waiting: 0, rejected: 1 });
}
