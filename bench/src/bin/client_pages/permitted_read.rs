//! Compares a permitted read of a record with two baselines: a handler that only reads the row (`bare`), and a page of the
//! same server that reads nothing, which has the cost of HTTP and of the page layer alone. All run side by side, in
//! alternating rounds, so that a change of the machine's load meets each of them.

use super::bare;
use chancery_bench::firm::Firm;
use chancery_bench::portal::{Figure, HTML, JSON, Page, Server, figure, in_ms};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const ROUNDS: usize = 5;
/// How many times the CPU time of the bare handler a permitted read may take.
const AIM: f64 = 2.0;

/// Returns a message if the read misses its target.
pub async fn compare(firm: &Firm, chancery: &Path, url: &str, requests: u32) -> Option<String> {
    let page = |what, path: String, accept| Page { what, path, session: firm.consultant.clone(), accept };
    let mut this = Command::new(std::env::current_exe().unwrap());
    this.args(["--bare", url]);
    let bare = Server::start(this, bare::LISTEN).await;
    let portal = Server::chancery(chancery, url).await;
    let record = page("permitted read", format!("/clients/{}", firm.record), JSON);
    let file = page("static file", static_file(&portal, firm).await, HTML);
    let (mut reads, mut permitted, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        reads.push(figure(&bare, &record, requests).await);
        permitted.push(figure(&portal, &record, requests).await);
        files.push(figure(&portal, &file, requests).await);
    }
    let [reads, permitted, files] = [reads, permitted, files].map(|figures| summary(&figures));
    println!("\na record as JSON, {ROUNDS} rounds of {requests} requests each, one at a time\n");
    println!("{:<44}{:>16}{:>16}", "", "median", "CPU");
    for (what, figure) in [
        ("permitted read", &permitted),
        ("bare handler: the row alone, no session", &reads),
        ("static file of the same server", &files),
    ] {
        let (median, cpu) = (in_ms(figure.median), in_ms(figure.cpu));
        println!("{what:<44}{:>16}{:>16}", format!("{median:.3} ms"), format!("{cpu:.3} ms"));
    }
    let ratio = |of: Duration, to: Duration| of.as_secs_f64() / to.as_secs_f64();
    let (median, cpu) = (ratio(permitted.median, reads.median), ratio(permitted.cpu, reads.cpu));
    println!("permitted read to bare handler: {cpu:.2} x CPU (aim: at most {AIM} x), {median:.2} x median");
    (cpu > AIM)
        .then(|| format!("permitted read: {cpu:.2} x the CPU of a bare handler, and the aim is {AIM} x"))
}

/// The median of the rounds' medians, and the mean CPU time.
fn summary(rounds: &[Figure]) -> Figure {
    let mut medians: Vec<Duration> = rounds.iter().map(|round| round.median).collect();
    medians.sort_unstable();
    let cpu: Duration = rounds.iter().map(|round| round.cpu).sum();
    Figure { median: medians[medians.len() / 2], cpu: cpu / rounds.len() as u32 }
}

/// The path of the icon that every page links to. It has a version in its name.
async fn static_file(portal: &Server, firm: &Firm) -> String {
    let page = portal.connect().await.get("/clients", &firm.consultant.cookie, HTML).await;
    let html = String::from_utf8(page.body.to_vec()).unwrap();
    let start = html.find("/assets/favicon-").unwrap();
    html[start..].split('"').next().unwrap().to_owned()
}
