//! Whether the time of a denial tells that a client exists: one of somebody else's against a number that is nobody's.

use super::firm::Firm;
use chancery_bench::paired_times::{MAX_LEANING, leaning};
use chancery_bench::portal::{Connection, JSON, Server, in_ms};
use chancery_domain::{Clock, SystemClock};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PAIRS: usize = 2_000;
/// For caches and for the machine to settle.
const WARM_UP: usize = 50;
const CLIENTS: u64 = 40;
/// No client of the firm has it.
const NOBODYS: i64 = 999_999;

/// Gives, in words, that it tells.
pub async fn compare(chancery: &Path) -> Option<String> {
    let folder = tempfile::tempdir_in(fastest_folder()).unwrap();
    let url = format!("sqlite:{}", folder.path().join("denied.db").display());
    let mut firm = Firm::open(&url).await;
    firm.grow_to(CLIENTS).await;
    let server = Server::chancery(chancery, &url).await;
    let mut connection = server.connect().await;
    let another = format!("/clients/{}", firm.record_of_another);
    let nobodys = format!("/clients/{NOBODYS}");
    let cookie = &firm.consultant.cookie;
    let mut pairs = Vec::new();
    for round in 0..WARM_UP + PAIRS {
        // Which is first changes, so that what one request leaves behind for the next favours neither.
        let (first, second) = if round % 2 == 0 { (&another, &nobodys) } else { (&nobodys, &another) };
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

/// In memory where there is such a folder: waiting for a real disk would hide a difference.
fn fastest_folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

async fn time(connection: &mut Connection, path: &str, cookie: &str) -> Duration {
    let began = SystemClock.monotonic();
    let answer = connection.get(path, cookie, JSON).await;
    let taken = SystemClock.monotonic() - began;
    assert_eq!(answer.status, 403, "{path}");
    taken
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}
