//! Tests whether the response time of a denial reveals that a client exists: another consultant's client against an
//! unused number.

use chancery_bench::firm::Firm;
use chancery_bench::paired_times::{MAX_LEANING, leaning};
use chancery_bench::portal::{Connection, JSON, Server, in_ms};
use chancery_domain::{Clock, SystemClock};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PAIRS: usize = 2_000;
/// Lets caches and the machine settle.
const WARM_UP: usize = 50;
const CLIENTS: u64 = 40;
/// No client has this number.
const NONEXISTENT: i64 = 999_999;

/// Returns a message if the time differs.
pub async fn compare(chancery: &Path) -> Option<String> {
    let folder = tempfile::tempdir_in(fastest_folder()).unwrap();
    let url = format!("sqlite:{}", folder.path().join("denied.db").display());
    let mut firm = Firm::open(&url).await;
    firm.grow_to(CLIENTS).await;
    let server = Server::chancery(chancery, &url).await;
    let mut connection = server.connect().await;
    let other_owned = format!("/clients/{}", firm.record_of_another);
    let nonexistent = format!("/clients/{NONEXISTENT}");
    let cookie = &firm.consultant.cookie;
    let mut pairs = Vec::new();
    for round in 0..WARM_UP + PAIRS {
        // Alternates the order, so that side effects of one request on the next favour neither.
        let (first, second) =
            if round % 2 == 0 { (&other_owned, &nonexistent) } else { (&nonexistent, &other_owned) };
        let first_time = time(&mut connection, first, cookie).await;
        let second_time = time(&mut connection, second, cookie).await;
        pairs.push(if round % 2 == 0 { (first_time, second_time) } else { (second_time, first_time) });
    }
    pairs.drain(..WARM_UP);
    firm.close().await;

    let leaning = leaning(&pairs);
    let (not_yours, not_there) =
        (median(pairs.iter().map(|pair| pair.0)), median(pairs.iter().map(|pair| pair.1)));
    println!(
        "\ndenied: a client of another {:.3} ms, a number that is nobody's {:.3} ms; leaning {leaning:+.3} (aim: within {MAX_LEANING})",
        in_ms(not_yours),
        in_ms(not_there)
    );
    (leaning.abs() >= MAX_LEANING).then(|| format!("denied: the time tells, leaning {leaning:+.3}"))
}

/// Uses an in-memory file system if there is one: waiting for a real disk would hide a difference.
fn fastest_folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

async fn time(connection: &mut Connection, path: &str, cookie: &str) -> Duration {
    let began = SystemClock.monotonic();
    let response = connection.get(path, cookie, JSON).await;
    let elapsed = SystemClock.monotonic() - began;
    assert_eq!(response.status, 403, "{path}");
    elapsed
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}
