//! The database fails while streams run, and the process ends before it is back: by `kill -9`, or by SIGTERM. Every stream
//! gets its end, and after the next start its row is in the ledger once.

use super::client_requests::{Outcome, read_to_the_end};
use super::hang_ups::endless;
use super::ledger::{Delivered, assert_verified, rows, undelivered};
use super::proxy::{Mode, Proxy};
use super::rounds::{Counts, Draw, rounds};
use crate::event_stream::EventStream;
use crate::server::{Firm, Server, client};
use chancery_test_support::PostgresDatabase;
use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;

const STREAMS: u64 = 3;

/// Long enough that the streams still run when the database fails.
const TOKENS: u64 = 300;

/// The rest of the text, and the seconds for which a row waits for the database.
const ENDED_WITHIN: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_ended_in_a_database_outage_has_billed_delivered_streams_once() {
    rounds("ended in an outage", async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let database = PostgresDatabase::create("journal");
    let (proxy, url) = Proxy::before(&database.url()).await;
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &url);
    let key = firm.account_with_key("Hale & Ward");
    let mut delivered = Delivered::new();
    let mut server = firm.start();
    for signal in [Signal::KILL, Signal::TERM] {
        let running = start_streams(&server, &key, delivered.len()).await;
        proxy.set(*draw.one_of(&[Mode::Gone, Mode::Silent]));
        for stream in running {
            let ended = tokio::time::timeout(ENDED_WITHIN, read_to_the_end(stream, false)).await;
            match ended.expect("the stream ends during the outage") {
                Outcome::Received { id, content, .. } => {
                    assert_eq!(delivered.insert(id, content), None, "two replies with one id");
                }
                other => panic!("{other:?}\n{}", server.log()),
            }
        }
        assert_eq!(server.metric("chancery_journaled_requests").await, STREAMS, "{}", server.log());
        server.signal(signal);
        let code = server.wait();
        assert!(signal == Signal::KILL || code == Some(0), "{code:?}: {}", server.log());
        assert_eq!(rows(&database.url()).await.len() as u64 + STREAMS, delivered.len() as u64);
        proxy.set(Mode::Through);
        let verified = firm.run(&["verify"]);
        assert!(verified.contains(&format!("warning: {STREAMS} usage rows")), "{verified}");
        if draw.number(0..=1) == 0 {
            firm.start_and_kill_after(draw.pause(0..=600)).await;
            counts.add("kills while starting", 1);
        }
        server = firm.start();
        assert_eq!(undelivered(&rows(&database.url()).await, &delivered), []);
        assert_verified(&firm, &[]);
        assert!(!firm.data().join(chancery_metering::JOURNAL_FILE).exists());
        counts.add("ended in an outage", 1);
    }
    // Keys still have their replies: nothing runs again.
    for number in (0..delivered.len() as u64).filter(|number| number % 2 == 0) {
        let stream = open_stream(&server, &key, number).await;
        assert_eq!(stream.header("idempotent-replayed"), "true");
        let Outcome::Received { id, content, .. } = read_to_the_end(stream, true).await else { panic!() };
        assert_eq!(delivered.get(&id), Some(&content));
        counts.add("replays", 1);
    }
    server.end();
    assert_eq!(undelivered(&rows(&database.url()).await, &delivered), []);
    counts.add("replies compared", delivered.len());
}

/// Streams whose first text has arrived.
async fn start_streams(server: &Server, key: &str, first: usize) -> Vec<EventStream> {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        streams.push(open_stream(server, key, first as u64 + number).await);
    }
    streams
}

/// Every second one has an idempotency key.
async fn open_stream(server: &Server, key: &str, number: u64) -> EventStream {
    let mut body = endless();
    body["max_output_tokens"] = json!(TOKENS);
    body["stream"] = json!(true);
    let mut call = client().post(format!("{}/v1/generate", server.api)).bearer_auth(key).json(&body);
    call = call.timeout(ENDED_WITHIN);
    if number.is_multiple_of(2) {
        call = call.header("idempotency-key", format!("stream-{number}"));
    }
    EventStream::send(call).await
}
