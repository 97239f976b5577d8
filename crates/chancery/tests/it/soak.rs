//! A long run of everything at once: replies and streams, portal pages and notes, imports, exports, sign-ins, webhooks and rotations
//! of keys. What the server holds at the end is compared with what it held early on, and every reply with its row.
//!
//! `make soak` runs it for an hour; `CHANCERY_SOAK_MINUTES` says how long. The load is far below what the machine can take, because
//! a leak shows in any case, and an overloaded server rejects.

use crate::faults::client_requests::baseline_replies;
use crate::faults::clients::{ClientBehavior, Clients, Target, UNAVAILABLE};
use crate::faults::ledger::{Delivered, assert_verified, deliver, rows};
use crate::faults::rounds::{Counts, Draw, Statuses, rounds};
use crate::office::{SignedInUser, sign_in};
use crate::server::{Firm, Server};
use crate::webhooks::{Receiver, add_webhook};
use chancery_domain::{Clock, SystemClock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DEFAULT_MINUTES: u64 = 60;
/// Caches are full, pools have grown and the allocator has what it needs. Shorter runs compare with their first third.
const COMPARE_AFTER: Duration = Duration::from_secs(600);
/// How much more than early on the server may hold at the end: so many per cent, and a constant for what varies from moment to moment.
const MAX_GROWTH_PERCENT: u64 = 20;

const API: ClientBehavior = ClientBehavior {
    clients: 3,
    pause_ms: 100..=500,
    allowed_errors: &[UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

/// What the server holds at a moment, in the order of `MEASURES`.
type Sample = [u64; MEASURES.len()];

/// The name and unit of each measure, and its constant if it must not grow. The database and the log grow with the load.
const MEASURES: [(&str, Option<u64>); 5] = [
    ("resident memory, KiB", Some(32 * 1024)),
    ("descriptors", Some(40)),
    ("threads", Some(8)),
    ("database, KiB", None),
    ("log, KiB", None),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_mixed_load_leaves_memory_descriptors_and_threads_bounded() {
    let minutes =
        std::env::var("CHANCERY_SOAK_MINUTES").map_or(DEFAULT_MINUTES, |text| text.parse().unwrap());
    let duration = Duration::from_secs(minutes * 60);
    rounds("soak", async |draw, counts| soak(duration, draw, counts).await).await;
}

async fn soak(duration: Duration, draw: Draw, counts: &mut Counts) {
    let receiver = Receiver::start(204).await;
    let firm = Firm::new().with("CHANCERY_WEBHOOKS__ALLOW_PRIVATE", "127.0.0.1");
    let mut server = tokio::task::block_in_place(|| firm.start_with(&["--demo", "--minimal"]));
    let webhook = add_webhook(&firm, &receiver.url);
    let key = firm.account_with_key("Soak & Sons");
    let rotated = firm.run(&["key", "create", "--account", "Soak & Sons"]).trim().to_owned();
    let (prompts, received) = baseline_replies(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let at_start = sample(&firm, &server);

    let firm = Arc::new(firm);
    let clients = Clients::start(&Target { apis: vec![server.api.clone()], key, prompts }, &API, &draw);
    let load =
        Load { firm: Arc::clone(&firm), portal: server.portal.clone(), is_over: AtomicBool::new(false) };
    let maya = sign_in(&firm, &server.portal, "maya").await;
    let file = firm.folder.path().join("clients.jsonl");
    let client = r#"{"name":"Harbour Lane Bakery","owner":"omar@example.com"}"#;
    std::fs::write(&file, [client; 5].join("\n")).unwrap();
    let import = ["client", "import", file.to_str().unwrap()];
    let rotation = ["key", "rotate", &rotated[..11], "--overlap", "0", "--end-overlap"];
    let test = ["webhook", "test", &webhook];
    let watched = async {
        let early = COMPARE_AFTER.min(duration / 3);
        tokio::time::sleep(early).await;
        let at_early = sample(&firm, &server);
        let ends_at = SystemClock.monotonic() + (duration - early);
        let mut peak = at_early;
        while SystemClock.monotonic() < ends_at {
            tokio::time::sleep(Duration::from_secs(5)).await;
            peak.iter_mut().zip(sample(&firm, &server)).for_each(|(peak, now)| *peak = now.max(*peak));
        }
        let at_end = sample(&firm, &server);
        load.is_over.store(true, Ordering::SeqCst);
        (at_early, peak, at_end)
    };
    let ((at_early, peak, at_end), reading, exporting, signing_in, importing, sending, rotating) = tokio::join!(
        watched,
        load.read_and_write(maya),
        load.export(),
        load.sign_in_and_out(),
        load.command("imports", Duration::from_secs(10), &import),
        load.command("webhooks", Duration::from_secs(7), &test),
        load.command("rotations", Duration::from_secs(5), &rotation),
    );
    let record = clients.stop().await;
    for statuses in [&record.statuses, &reading, &exporting, &signing_in, &importing, &sending, &rotating] {
        counts.callers_saw(statuses);
    }
    counts.add("replies compared", record.replies.len());
    counts.add("events received", receiver.events().len());
    tokio::task::block_in_place(|| server.end());
    deliver(&mut delivered, &record.replies);
    let rows = rows(&firm.database_url()).await;
    for (id, content) in &delivered {
        let row = &rows[id];
        let tokens = (row.input_tokens, row.output_tokens);
        assert_eq!(tokens, (content.input_tokens, content.output_tokens), "{id}");
    }
    tokio::task::block_in_place(|| assert_verified(&firm, &[]));

    println!("{:<24}{:>12}{:>12}{:>12}{:>12}{:>10}", "soak", "start", "early", "peak", "end", "growth");
    let mut grown = Vec::new();
    for (index, (measure, constant)) in MEASURES.into_iter().enumerate() {
        let [start, early, peak, end] = [at_start, at_early, peak, at_end].map(|sample| sample[index]);
        let growth = end as f64 / early.max(1) as f64 * 100.0 - 100.0;
        println!("{measure:<24}{start:>12}{early:>12}{peak:>12}{end:>12}{growth:>8.1} %");
        let bound = constant.map(|constant| early + early * MAX_GROWTH_PERCENT / 100 + constant);
        if bound.is_some_and(|bound| end > bound) {
            grown.push(format!("{measure}: {end}, which was {early} after the start"));
        }
    }
    assert!(grown.is_empty(), "what the server holds grows: {grown:?}");
}

fn sample(firm: &Firm, server: &Server) -> Sample {
    let process = format!("/proc/{}", server.pid());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
    let number = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let descriptors = std::fs::read_dir(format!("{process}/fd")).unwrap().count() as u64;
    [number("VmRSS:"), descriptors, number("Threads:"), database_kib(firm), server.log().len() as u64 / 1024]
}

fn database_kib(firm: &Firm) -> u64 {
    let url = firm.database_url();
    if let Some(file) = url.strip_prefix("sqlite:") {
        let size = |suffix: &str| std::fs::metadata(format!("{file}{suffix}")).map_or(0, |file| file.len());
        assert!(Path::new(file).exists(), "{file}");
        return (size("") + size("-wal")) / 1024;
    }
    let size = chancery_test_support::query(&url, "SELECT pg_database_size(current_database()) / 1024");
    size.unwrap().parse().unwrap()
}

/// What people and the command line do until it is over. Each counts what it saw, and panics at anything else.
struct Load {
    firm: Arc<Firm>,
    portal: String,
    is_over: AtomicBool,
}

impl Load {
    async fn until_over(&self, pause: Duration, mut turn: impl AsyncFnMut(usize) -> String) -> Statuses {
        let mut statuses = Statuses::new();
        for number in 0.. {
            *statuses.entry(turn(number).await).or_default() += 1;
            let ends_at = SystemClock.monotonic() + pause;
            while SystemClock.monotonic() < ends_at && !self.is_over.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(250).min(pause)).await;
            }
            if self.is_over.load(Ordering::SeqCst) {
                break;
            }
        }
        statuses
    }

    async fn read_and_write(&self, maya: SignedInUser) -> Statuses {
        let client = maya.clients().await[0]["id"].to_string();
        let (record, entries) = (format!("/clients/{client}"), format!("/clients/{client}/entries"));
        let pages = ["/clients", &record, "/home", "/profile", "/clients?search=bakery"];
        let reading = self.until_over(Duration::from_millis(500), async |number| {
            // A record has room for so many entries; the rest of the time it is read.
            let response = match number % 40 {
                39 => {
                    maya.post(
                        &entries,
                        &[("kind", "meeting_note"), ("title", "Call"), ("text", "They called.")],
                    )
                    .await
                }
                _ => maya.page(pages[number % pages.len()]).await,
            };
            assert!(matches!(response.status.as_u16(), 200 | 303), "{}", response.body);
            format!("portal {}", response.status.as_u16())
        });
        reading.await
    }

    /// More often than one person may, so that some are rejected.
    async fn export(&self) -> Statuses {
        let paths = ["/clients/export.jsonl", "/clients/export.csv", "/invoices.csv", "/audit.csv"];
        let exporting = self.until_over(Duration::from_secs(60), async |number| {
            // An export needs a recent sign-in.
            let ruth = sign_in(&self.firm, &self.portal, "ruth").await;
            let response = ruth.page(paths[number % paths.len()]).await;
            assert!(matches!(response.status.as_u16(), 200 | 429), "{}", response.body);
            format!("exports {}", response.status.as_u16())
        });
        exporting.await
    }

    async fn sign_in_and_out(&self) -> Statuses {
        let signing_in = self.until_over(Duration::from_secs(20), async |number| {
            let person = sign_in(&self.firm, &self.portal, ["maya", "omar"][number % 2]).await;
            let out = person.post("/auth/sign-out", &[]).await;
            assert_eq!(out.status.as_u16(), 303, "{}", out.body);
            "sign-ins 200".to_owned()
        });
        signing_in.await
    }

    async fn command(&self, what: &str, pause: Duration, arguments: &[&str]) -> Statuses {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let running = self.until_over(pause, async |_| {
            let (firm, arguments) = (Arc::clone(&self.firm), arguments.clone());
            let run = move || firm.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            tokio::task::spawn_blocking(run).await.unwrap();
            format!("{what} done")
        });
        running.await
    }
}
