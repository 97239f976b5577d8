//! A closed loop: every connection sends its next request when its last reply is complete.

use crate::side::Mode;
use chancery_bench::Outcome;
use chancery_bench::keep_alive::{Answer, Connection, JsonPost};
use chancery_domain::{Clock, SystemClock};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Before a broken connection is replaced.
const RECONNECT_DELAY: Duration = Duration::from_millis(10);

/// Where a server listens, and the request of each connection.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    /// Connections use them in turn.
    pub requests: Vec<JsonPost>,
}

#[derive(Debug, Default)]
pub struct Load {
    /// Of successful requests, sorted.
    pub latencies: Vec<Duration>,
    pub elapsed: Duration,
    pub errors: usize,
    pub first_error: Option<String>,
}

pub async fn run(target: &Target, mode: Mode, connections: usize, measured: Duration) -> Outcome<Load> {
    let began = SystemClock.monotonic();
    let end = began + measured;
    let mut callers = JoinSet::new();
    for number in 0..connections {
        let request = target.requests[number % target.requests.len()].clone();
        callers.spawn(call_until(end, target.address, request, mode));
    }
    let mut load = Load::default();
    while let Some(caller) = callers.join_next().await {
        let caller = caller?;
        load.latencies.extend(caller.latencies);
        load.errors += caller.errors;
        load.first_error = load.first_error.or(caller.first_error);
    }
    load.latencies.sort_unstable();
    load.elapsed = SystemClock.monotonic() - began;
    Ok(load)
}

async fn call_until(end: Instant, address: SocketAddr, request: JsonPost, mode: Mode) -> Load {
    let mut load = Load::default();
    let mut connection = None;
    loop {
        let began = SystemClock.monotonic();
        if began >= end {
            return load;
        }
        match timeout(REQUEST_TIMEOUT, call(&mut connection, address, &request, mode)).await {
            Ok(Ok(())) => load.latencies.push(SystemClock.monotonic() - began),
            failed => {
                load.errors += 1;
                load.first_error.get_or_insert_with(|| match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => format!("no reply within {} s", REQUEST_TIMEOUT.as_secs()),
                });
                connection = None;
                sleep(RECONNECT_DELAY).await;
            }
        }
    }
}

async fn call(
    open: &mut Option<Connection>,
    address: SocketAddr,
    request: &JsonPost,
    mode: Mode,
) -> Outcome<()> {
    let connection = match open {
        Some(connection) => connection,
        None => open.insert(Connection::open(address).await?),
    };
    let answer = connection.send(request).await?;
    if is_complete(&answer, mode) {
        return Ok(());
    }
    let start = String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]);
    Err(format!("status {}: {start}", answer.status).into())
}

/// A stream must have reached its end, and a whole reply must be JSON.
pub fn is_complete(answer: &Answer, mode: Mode) -> bool {
    let body = answer.body.trim_ascii();
    answer.status == 200
        && match mode {
            Mode::Whole => body.starts_with(b"{") && body.ends_with(b"}"),
            Mode::Streamed => body.ends_with(b"data: [DONE]"),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_stream_and_error_status_count_as_errors() {
        let complete =
            |status: u16, body: &'static str, mode| is_complete(&Answer { status, body: body.into() }, mode);
        assert!(complete(200, "data: {}\n\ndata: [DONE]\n\n", Mode::Streamed));
        assert!(!complete(200, "data: {}\n\n", Mode::Streamed));
        assert!(complete(200, "{\"choices\":[]}\n", Mode::Whole));
        assert!(!complete(500, "{\"error\":{}}", Mode::Whole));
        assert!(!complete(200, "data: [DONE]", Mode::Whole));
    }
}
