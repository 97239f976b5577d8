//! Clients that hang up: before the request is complete, before the first token, in the middle, after the last. Exactly
//! what was generated until then is billed, and nothing if nothing was. The engine is free at once.

use super::client_requests::{ReplyMode, baseline_replies};
use super::clients::{ClientBehavior, Clients, Target};
use super::ledger::{Delivered, assert_verified, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::event_stream::EventStream;
use crate::server::{Firm, Server, client, eventually, request};
use chancery_domain::StopReason;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// One after another, so that the engine's own counters show what each generated.
const ALONE: u64 = 10;
/// At once, beside clients that stay.
const TOGETHER: u64 = 16;
/// Long enough that no reply ends before its client hangs up.
const ENDLESS_CAP: u64 = 4_000;
/// One decode step takes milliseconds; the rest is headroom for a busy machine.
const FREE_WITHIN: Duration = Duration::from_secs(5);

const BEHAVIOR: ClientBehavior =
    ClientBehavior { clients: 2, pause_ms: 0..=20, allowed_errors: &[], with_keys: false, may_be_cut: false };

/// When a client hangs up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    WithHalfOfTheBodySent,
    AsSoonAsItIsSent,
    After(Duration),
    AfterSomeText(u64),
}

impl When {
    fn random(draw: &Draw) -> Self {
        match draw.number(0..=5) {
            0 => Self::WithHalfOfTheBodySent,
            1 => Self::AsSoonAsItIsSent,
            2 | 3 => Self::After(draw.pause(0..=400)),
            _ => Self::AfterSomeText(draw.number(1..=8)),
        }
    }
}

/// The model never ends this reply while it picks the most likely token. Free sampling mostly ends within a hundred
/// tokens, which a fast machine generates before the client hangs up. With a temperature the engine uses no speculative
/// decoding, so that a step is a token, and `min_p` leaves only the most likely token to sample.
pub fn endless() -> Value {
    let mut body = request("Translate to French.", "", ENDLESS_CAP);
    body["temperature"] = json!(0.2);
    body["min_p"] = json!(1);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_hang_up_bills_exactly_the_generated_tokens_and_frees_the_engine() {
    rounds("hang-ups on SQLite", async |draw, counts| round(Firm::new(), draw, counts).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hang_up_bills_exactly_the_generated_tokens_on_postgresql_and_redis() {
    rounds("hang-ups on PostgreSQL and Redis", async |draw, counts| {
        round(Firm::on_postgres_and_redis("hang_ups"), draw, counts).await;
    })
    .await;
}

async fn round(firm: Firm, draw: Draw, counts: &mut Counts) {
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    one_by_one(&firm, &key, &server, &draw, counts).await;
    all_together(&firm, &key, &server, &draw, counts).await;
    assert_verified(&firm, &[]);
}

/// Sends the request and hangs up; returns how many pieces of text had arrived.
pub async fn hang_up(api: &str, key: &str, body: &Value, when: When, reply_mode: ReplyMode) -> u64 {
    let text = body.to_string();
    if when == When::WithHalfOfTheBodySent || when == When::AsSoonAsItIsSent {
        let sent = if when == When::AsSoonAsItIsSent { &text } else { &text[..text.len() / 2] };
        let mut connection = TcpStream::connect(api.trim_start_matches("http://")).unwrap();
        write!(
            connection,
            "POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{sent}",
            text.len()
        )
        .unwrap();
        return 0;
    }
    let mut body = body.clone();
    body["stream"] = json!(reply_mode == ReplyMode::Streamed);
    let call = client().post(format!("{api}/v1/generate")).bearer_auth(key).json(&body).send();
    if let (When::AfterSomeText(pieces), ReplyMode::Streamed) = (when, reply_mode) {
        let mut stream = EventStream::of(call.await.unwrap());
        for _ in 0..pieces {
            stream.first_text().await;
        }
        return pieces;
    }
    let pause = match when {
        When::After(pause) => pause,
        // A whole reply sends nothing before its end.
        _ => Duration::from_millis(150),
    };
    let whole = async { call.await.unwrap().text().await };
    let came = tokio::time::timeout(pause, whole).await;
    assert!(came.is_err(), "a reply of {ENDLESS_CAP} tokens has come within {pause:?}: {came:?}");
    0
}

async fn until_idle(server: &Server) {
    eventually("the engine is free", FREE_WITHIN, async || {
        server.metric("chancery_running_requests").await == 0
            && server.metric("chancery_engine_running").await == 0
    })
    .await;
}

async fn one_by_one(firm: &Firm, key: &str, server: &Server, draw: &Draw, counts: &mut Counts) {
    let (mut pieces, mut fully_sent) = (0, 0);
    for _ in 0..ALONE {
        let (when, reply_mode) = (When::random(draw), ReplyMode::random(draw));
        pieces += hang_up(&server.api, key, &endless(), when, reply_mode).await;
        fully_sent += usize::from(when != When::WithHalfOfTheBodySent);
        // The server may not have noticed yet that a client hung up right after sending; its tokens then count on the next poll.
        eventually("exactly what was generated is billed", FREE_WITHIN, async || {
            until_idle(server).await;
            let generated = server.metric("chancery_engine_steps_total").await;
            let billed = rows(&firm.database_url()).await;
            billed.values().map(|row| u64::from(row.output_tokens)).sum::<u64>() == generated
        })
        .await;
    }
    let billed = rows(&firm.database_url()).await;
    assert!(
        billed.values().all(|row| row.stop_reason == StopReason::Cancelled && row.output_tokens > 0),
        "{billed:?}"
    );
    assert!(billed.len() <= fully_sent, "{} rows for {fully_sent} whole requests", billed.len());
    let tokens = billed.values().map(|row| u64::from(row.output_tokens)).sum::<u64>();
    assert!(tokens >= pieces, "{tokens} tokens are billed, and {pieces} pieces of text had come");
    counts.add("hung up alone", ALONE as usize);
    counts.add("billed nothing, for nothing was generated", ALONE as usize - billed.len());
    counts.add("tokens billed of cut replies", tokens as usize);
}

async fn all_together(firm: &Firm, key: &str, server: &Server, draw: &Draw, counts: &mut Counts) {
    let before = rows(&firm.database_url()).await;
    let (prompts, received) = baseline_replies(server, key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = Target { apis: vec![server.api.clone()], key: key.to_owned(), prompts };
    let staying = Clients::start(&target, &BEHAVIOR, draw);
    let mut going = tokio::task::JoinSet::new();
    for _ in 0..TOGETHER {
        let (draw, api, key) = (draw.apart(), server.api.clone(), key.to_owned());
        going.spawn(async move {
            tokio::time::sleep(draw.pause(0..=800)).await;
            let body = endless();
            hang_up(&api, &key, &body, When::random(&draw), ReplyMode::random(&draw)).await
        });
    }
    let pieces: u64 = going.join_all().await.iter().sum();
    let record = staying.stop().await;
    until_idle(server).await;
    deliver(&mut delivered, &record.replies);
    let now = rows(&firm.database_url()).await;
    let new = now.into_iter().filter(|(id, _)| !before.contains_key(id)).collect();
    let cut = undelivered(&new, &delivered);
    assert!(
        cut.iter().all(|row| row.stop_reason == StopReason::Cancelled && row.output_tokens > 0),
        "{cut:?}"
    );
    assert!(cut.len() <= TOGETHER as usize, "{} rows of {TOGETHER} clients", cut.len());
    let tokens = cut.iter().map(|row| u64::from(row.output_tokens)).sum::<u64>();
    assert!(tokens >= pieces, "{tokens} tokens are billed, and {pieces} pieces of text had come");
    counts.add("hung up together", TOGETHER as usize);
    counts.add("tokens billed of cut replies", tokens as usize);
    counts.add("replies compared", record.replies.len());
}
