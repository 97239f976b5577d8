//! What the checkpointer signs, copies and refuses, on both databases.

use crate::databases::{Database, Kind};
use chancery_domain::{
    AccountId, ApiKey, Clock, KeyId, KeyLimits, LogName, ManualClock, Nanos, OsRandomness, Prices,
    RateLimits, RequestId, StopReason, TokenPrice, UnixMillis, UsageRow, leaf_hash,
};
use chancery_store::{NewAccount, NewKey, Store};
use chancery_tlog::{Checkpoint, VerifierKeys, is_included};
use chancery_transparency::{
    CheckpointFolder, Checkpointer, Destinations, FiledCheckpoints, PUBLIC_KEY_FILE, SyslogAddress,
    load_or_create_key, load_verifier_keys, prove_inclusion,
};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NOON: UnixMillis = UnixMillis(1_794_744_000_000);
const KINDS: [Kind; 2] = [Kind::Sqlite, Kind::Postgres];

fn row(number: i64, (account, key): (AccountId, KeyId)) -> UsageRow {
    UsageRow {
        request_id: RequestId::from_stored(format!("req_{number:05}")),
        account,
        key,
        model: "m".to_owned(),
        input_tokens: 10,
        cached_input_tokens: 0,
        output_tokens: 5,
        prices: Prices {
            input: TokenPrice::from_nanos_per_token(100),
            cached_input: TokenPrice::from_nanos_per_token(100),
            output: TokenPrice::from_nanos_per_token(400),
        },
        cost: Nanos(3_000),
        at: NOON,
        stop_reason: StopReason::Complete,
    }
}

async fn payer(store: &Store) -> (AccountId, KeyId) {
    let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
    let new = NewAccount { name: "A".parse().unwrap(), limits, created_at: UnixMillis(0) };
    let account = store.create_account(new).await.unwrap().id;
    let key = ApiKey::generate(&OsRandomness);
    let new = NewKey {
        prefix: key.prefix(),
        hash: key.hash(),
        label: String::new(),
        account: Some(account),
        created_at: UnixMillis(0),
        limits: KeyLimits::default(),
    };
    (account, store.create_key(new).await.unwrap().id)
}

async fn settle(store: &Arc<Store>, numbers: std::ops::Range<i64>, payer: (AccountId, KeyId)) {
    let mut settling = tokio::task::JoinSet::new();
    for number in numbers {
        let store = Arc::clone(store);
        settling.spawn(async move { store.ledger.settle(row(number, payer).into()).await });
    }
    settling.join_all().await.into_iter().for_each(|settled| settled.unwrap());
}

/// A node with a data directory of its own. Nodes of one site have the same key.
fn checkpointer(store: &Store, data: &Path, credentials: Option<&Path>) -> Checkpointer {
    let key = load_or_create_key(data, credentials, "api.example.com", &OsRandomness).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOON));
    let folder = CheckpointFolder::open(data).unwrap();
    Checkpointer::new(store.logs(), folder, key, keys(data), clock).unwrap()
}

fn keys(data: &Path) -> VerifierKeys {
    load_verifier_keys(&data.join(PUBLIC_KEY_FILE)).unwrap()
}

fn filed(data: &Path) -> Vec<Checkpoint> {
    let filed = FiledCheckpoints::read(&data.join("checkpoints"), &keys(data)).unwrap();
    assert_eq!(filed.problems, Vec::<String>::new());
    filed.checkpoints.iter().map(|filed| filed.checkpoint).collect()
}

fn filed_sizes(data: &Path, log: LogName) -> Vec<u64> {
    filed(data).iter().filter(|checkpoint| checkpoint.log == log).map(|checkpoint| checkpoint.size).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_can_be_proved_at_the_checkpoint_that_first_has_it() {
    for kind in KINDS {
        let (database, data) = (Database::create(kind), tempfile::tempdir().unwrap());
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        let other = Arc::new(Store::open(&database.url()).await.unwrap());
        let payer = payer(&store).await;
        let checkpointer = checkpointer(&store, data.path(), None);
        settle(&store, 0..200, payer).await;
        assert_eq!(checkpointer.checkpoint().await.len(), 2, "{kind:?}: both logs have grown");
        assert_eq!(checkpointer.checkpoint().await.len(), 0, "{kind:?}: neither has grown");
        settle(&other, 200..500, payer).await;
        settle(&store, 500..600, payer).await;
        assert_eq!(checkpointer.checkpoint().await.len(), 1, "{kind:?}: the ledger has grown");
        assert_eq!(filed_sizes(data.path(), LogName::Ledger), [200, 600]);
        let checkpoints = filed(data.path());
        for number in [0, 7, 199, 200, 255, 256, 499, 500, 599] {
            let row = row(number, payer);
            let logged = store.log_reader.logged_usage(&row.request_id).await.unwrap().unwrap();
            assert_eq!(logged.row, row);
            let index = logged.index.unwrap();
            let covers = |found: &&Checkpoint| found.log == LogName::Ledger && found.size > index;
            let Checkpoint { size, root, .. } = *checkpoints.iter().find(covers).unwrap();
            assert_eq!(size == 200, number < 200);
            let proof = prove_inclusion(&store.log_reader, LogName::Ledger, size, index).await.unwrap();
            assert!(is_included(&proof, (size, root), (index, leaf_hash(&row))), "{kind:?}: {number}");
        }
        other.close().await;
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_checkpointer_goes_on_from_its_folder() {
    for kind in KINDS {
        let (database, data) = (Database::create(kind), tempfile::tempdir().unwrap());
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        let payer = payer(&store).await;
        for (end, start) in [(30, 0), (300, 30), (301, 300)] {
            settle(&store, start..end, payer).await;
            checkpointer(&store, data.path(), None).checkpoint().await;
        }
        assert_eq!(filed_sizes(data.path(), LogName::Ledger), [30, 300, 301]);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_copy_checkpoints_and_racing_ones_log_each_row_once() {
    for kind in KINDS {
        let database = Database::create(kind);
        let data = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        let payer = payer(&store).await;
        settle(&store, 0..40, payer).await;
        let first = checkpointer(&store, data[0].path(), None);
        first.checkpoint().await;
        // The second node has the first one's key, as a credential.
        let second = checkpointer(&store, data[1].path(), Some(data[0].path()));
        assert_eq!(second.checkpoint().await.len(), 0);
        assert_eq!(filed(data[1].path()), filed(data[0].path()));
        settle(&store, 40..400, payer).await;
        tokio::join!(first.checkpoint(), second.checkpoint());
        first.checkpoint().await;
        second.checkpoint().await;
        assert_eq!(store.log_reader.log_size(LogName::Ledger).await.unwrap(), 400);
        for data in &data {
            assert_eq!(filed_sizes(data.path(), LogName::Ledger).last(), Some(&400), "{kind:?}");
        }
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_signed_over_changed_or_removed_rows() {
    for kind in KINDS {
        for change in [
            "UPDATE ledger SET at_ms = at_ms + 1 WHERE request_id = 'req_00039'",
            "DELETE FROM ledger WHERE request_id = 'req_00039'",
            "DELETE FROM log_segments WHERE log = 'ledger'",
        ] {
            let (database, data) = (Database::create(kind), tempfile::tempdir().unwrap());
            let store = Arc::new(Store::open(&database.url()).await.unwrap());
            let payer = payer(&store).await;
            settle(&store, 0..40, payer).await;
            let checkpointer = checkpointer(&store, data.path(), None);
            checkpointer.checkpoint().await;
            database.tamper(change).await;
            settle(&store, 40..50, payer).await;
            checkpointer.checkpoint().await;
            assert_eq!(filed_sizes(data.path(), LogName::Ledger), [40], "{kind:?}: {change}");
            store.close().await;
        }
    }
}

/// Reads one request, answers it, and returns its body.
async fn receive(listener: &tokio::net::TcpListener) -> serde_json::Value {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut text = String::new();
    loop {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).await.unwrap();
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str(body)
        {
            stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
            return body;
        }
        assert!(length > 0, "the request ended early: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_checkpoints_are_sent_to_syslog_and_webhook() {
    let (database, data) = (Database::create(Kind::Sqlite), tempfile::tempdir().unwrap());
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    let payer = payer(&store).await;
    settle(&store, 0..3, payer).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let daemon = tokio::net::UnixDatagram::bind(data.path().join("log")).unwrap();
    let destinations = Destinations {
        syslog: Some(SyslogAddress::Local(data.path().join("log"))),
        webhook: Some(format!("http://{}/hook", listener.local_addr().unwrap()).parse().unwrap()),
    };
    let checkpointer = checkpointer(&store, data.path(), None).with_destinations(destinations);
    let receiving = tokio::spawn(async move { [receive(&listener).await, receive(&listener).await] });
    let notes = checkpointer.checkpoint().await;
    let received = receiving.await.unwrap();
    assert_eq!(notes.len(), 2);
    for (note, (event, log)) in notes.iter().zip(received.iter().zip(["ledger", "audit"])) {
        assert_eq!(event["type"], "checkpoint");
        assert_eq!(event["data"]["log"], log);
        assert_eq!(event["data"]["checkpoint"], note.as_str());
        let mut buffer = [0; 1000];
        let length = daemon.recv(&mut buffer).await.unwrap();
        let line = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(!line.contains('\n'), "{line}");
        let (_, quoted) = line.split_once("checkpoint ").unwrap();
        assert_eq!(serde_json::from_str::<String>(quoted).unwrap(), *note);
    }
    // An unreachable destination keeps nobody waiting, and the checkpoint is signed anyway.
    drop(daemon);
    settle(&store, 3..5, payer).await;
    assert_eq!(checkpointer.checkpoint().await.len(), 1);
    assert_eq!(filed_sizes(data.path(), LogName::Ledger), [3, 5]);
    store.close().await;
}
