//! Clients that go away: before their request is whole, before the first token, in the middle, after the last. What was
//! generated until then is billed, exactly; where nothing was, nothing is; and the engine is free at once.

use super::asks::{Wanted, in_peace};
use super::clients::{Clients, Manner, Target};
use super::ledger::{Delivered, assert_verified, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::event_stream::EventStream;
use crate::server::{Firm, Server, client, eventually, request};
use chancery_domain::HowEnded;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// One after another, where the engine's own count of its work tells what each had.
const ALONE: u64 = 10;
/// At once, beside clients that stay.
const TOGETHER: u64 = 16;
/// No reply of these ends by itself as soon as anybody hangs up here.
const ENDLESS_CAP: u64 = 4_000;
/// One decode step is milliseconds; the rest is for a loaded machine.
const FREE_WITHIN: Duration = Duration::from_secs(5);

const MANNER: Manner =
    Manner { clients: 2, pause_ms: 0..=20, may_be_refused: &[], with_keys: false, may_be_cut: false };

/// When a client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    WithHalfOfTheBodySent,
    AsSoonAsItIsSent,
    After(Duration),
    AfterSomeText(u64),
}

impl When {
    fn drawn(draw: &Draw) -> Self {
        match draw.number(0..=5) {
            0 => Self::WithHalfOfTheBodySent,
            1 => Self::AsSoonAsItIsSent,
            2 | 3 => Self::After(draw.pause(0..=400)),
            _ => Self::AfterSomeText(draw.number(1..=8)),
        }
    }
}

/// The model does not end this by itself as long as each token is the likeliest; what is drawn freely mostly ends within a
/// hundred tokens, which a fast machine generates before anybody hangs up. With a temperature the engine drafts nothing
/// ahead, so that a step is a token, and `min_p` leaves nothing but the likeliest to draw from.
pub fn endless() -> Value {
    let mut body = request("Translate to French.", "", ENDLESS_CAP);
    body["temperature"] = json!(0.2);
    body["min_p"] = json!(1);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hangs_up_pays_for_exactly_what_was_generated_and_frees_the_engine() {
    rounds("hang-ups on SQLite", 1, async |draw, counts| round(Firm::new(), draw, counts).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hangs_up_pays_for_exactly_what_was_generated_on_postgresql_and_redis() {
    rounds("hang-ups on PostgreSQL and Redis", 1, async |draw, counts| {
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

/// Sends it and goes away; gives how many pieces of text had come.
pub async fn hang_up(api: &str, key: &str, body: &Value, when: When, wanted: Wanted) -> u64 {
    let text = body.to_string();
    if when == When::WithHalfOfTheBodySent || when == When::AsSoonAsItIsSent {
        let half = if when == When::AsSoonAsItIsSent { &text } else { &text[..text.len() / 2] };
        let mut connection = TcpStream::connect(api.trim_start_matches("http://")).unwrap();
        write!(
            connection,
            "POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{half}",
            text.len()
        )
        .unwrap();
        return 0;
    }
    let mut body = body.clone();
    body["stream"] = json!(wanted == Wanted::Streamed);
    let call = client().post(format!("{api}/v1/generate")).bearer_auth(key).json(&body).send();
    if let (When::AfterSomeText(pieces), Wanted::Streamed) = (when, wanted) {
        let mut stream = EventStream::of(call.await.unwrap());
        for _ in 0..pieces {
            stream.first_text().await;
        }
        return pieces;
    }
    let pause = match when {
        When::After(pause) => pause,
        // Of a whole reply nothing comes before its end.
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
        let (when, wanted) = (When::drawn(draw), Wanted::drawn(draw));
        pieces += hang_up(&server.api, key, &endless(), when, wanted).await;
        fully_sent += usize::from(when != When::WithHalfOfTheBodySent);
        // One that is gone as soon as it is sent may yet have to be noticed; it then counts on the next turn.
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
        billed.values().all(|row| row.ended == HowEnded::Cancelled && row.output_tokens > 0),
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
    let (asks, received) = in_peace(server, key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = Target { apis: vec![server.api.clone()], key: key.to_owned(), asks };
    let staying = Clients::start(&target, &MANNER, draw);
    let mut going = tokio::task::JoinSet::new();
    for _ in 0..TOGETHER {
        let (draw, api, key) = (draw.apart(), server.api.clone(), key.to_owned());
        going.spawn(async move {
            tokio::time::sleep(draw.pause(0..=800)).await;
            let body = endless();
            hang_up(&api, &key, &body, When::drawn(&draw), Wanted::drawn(&draw)).await
        });
    }
    let pieces: u64 = going.join_all().await.iter().sum();
    let record = staying.stop().await;
    until_idle(server).await;
    deliver(&mut delivered, &record.replies);
    let now = rows(&firm.database_url()).await;
    let new = now.into_iter().filter(|(id, _)| !before.contains_key(id)).collect();
    let cut = undelivered(&new, &delivered);
    assert!(cut.iter().all(|row| row.ended == HowEnded::Cancelled && row.output_tokens > 0), "{cut:?}");
    assert!(cut.len() <= TOGETHER as usize, "{} rows of {TOGETHER} clients", cut.len());
    let tokens = cut.iter().map(|row| u64::from(row.output_tokens)).sum::<u64>();
    assert!(tokens >= pieces, "{tokens} tokens are billed, and {pieces} pieces of text had come");
    counts.add("hung up together", TOGETHER as usize);
    counts.add("tokens billed of cut replies", tokens as usize);
    counts.add("replies compared", record.replies.len());
}
