//! Measures how the portal's pages scale with the firm: the list, its searches and a record, requested over HTTP by a signed-in
//! user, at 100 and at 100,000 clients. Also compares a permitted read of a record with a handler that only reads the row, and
//! tests whether the response time of a denial reveals that a client exists (`--denied` runs only that).
//!
//!     make bench-portal
//!     target/release/client_pages --chancery target/release/chancery --postgres postgres://postgres@localhost/postgres
//!
//! The portal is the real binary in its own process, and so is the baseline handler. This process sends one request at a time.
//! Only figures from the same run are comparable. `--postgres` creates a database there and drops it at the end.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

mod bare;
mod denied;
mod firm;

use chancery_bench::people::SignedIn;
use chancery_bench::portal::{HTML, JSON, Measured, Page, Server, exit_code, figure, in_ms, print_figures};
use chancery_domain::{Clock, SystemClock};
use chancery_test_support::PostgresDatabase;
use clap::Parser;
use firm::Firm;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

#[derive(Parser)]
struct Options {
    /// The binary to measure
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// Numbers of clients, ascending
    #[arg(long, value_delimiter = ',', default_value = "100,100000")]
    clients: Vec<u64>,
    /// Requests per figure
    #[arg(long, default_value_t = 400)]
    requests: u32,
    /// Measure on this PostgreSQL server too, given as the URL of one of its databases
    #[arg(long)]
    postgres: Option<String>,
    /// Only compare the response times of denials
    #[arg(long)]
    denied: bool,
    /// Run as the baseline handler for this database
    #[arg(long, hide = true)]
    bare: Option<String>,
}

/// How many times as expensive a page may be at the largest size as at the smallest.
const AIM: u32 = 2;
/// It must count all matches, so it grows with their number; see bench/RESULTS.md.
const ALL_FIT: &str = "search, all fit";

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(url) = &options.bare {
        bare::serve(url).await;
        return ExitCode::SUCCESS;
    }
    let denied = denied::compare(&options.chancery).await;
    if options.denied {
        return exit_code(denied.as_slice());
    }
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("pages.db").display());
    let mut beyond = measure("SQLite", &sqlite, &options).await;
    if let Some(admin_url) = &options.postgres {
        let database = PostgresDatabase::create_at(admin_url, "bench");
        beyond.extend(measure("PostgreSQL", &database.url(), &options).await);
    }
    beyond.extend(denied);
    exit_code(&beyond)
}

/// Returns the pages that miss their target.
async fn measure(name: &str, url: &str, options: &Options) -> Vec<String> {
    println!(
        "\n{name}: median of {} requests, one at a time, and the server's CPU time for each\n",
        options.requests
    );
    let mut firm = Firm::open(url).await;
    let mut sizes = Vec::new();
    for size in &options.clients {
        let filling = SystemClock.monotonic();
        firm.grow_to(*size).await;
        eprintln!("{size} clients after {:.0} s", (SystemClock.monotonic() - filling).as_secs_f64());
        let server = Server::chancery(&options.chancery, url).await;
        let mut figures = Vec::new();
        for page in pages(&firm) {
            figures.push(figure(&server, &page, options.requests).await);
        }
        sizes.push(figures);
    }
    let measured = |page: &Page| Measured { what: page.what, aim: (page.what != ALL_FIT).then_some(AIM) };
    let measured: Vec<Measured> = pages(&firm).iter().map(measured).collect();
    let columns: Vec<String> = options.clients.iter().map(|size| format!("{size} clients")).collect();
    let beyond = print_figures(&measured, &columns, &sizes);
    compare_with_bare(&firm, url, options).await;
    firm.close().await;
    beyond.into_iter().map(|page| format!("{name}, {page}")).collect()
}

fn pages(firm: &Firm) -> Vec<Page> {
    let page = |what, path: &str, session: &SignedIn, accept| Page {
        what,
        path: path.to_owned(),
        session: session.clone(),
        accept,
    };
    let (partner, consultant) = (&firm.partner, &firm.consultant);
    let record = format!("/clients/{}", firm.record);
    vec![
        page("list, partner", "/clients", partner, HTML),
        page("list, consultant", "/clients", consultant, HTML),
        page("list by name", "/clients?sort=name", partner, HTML),
        page("list, fourth page", "/clients?page=4", partner, HTML),
        page("search, one finds it", "/clients?q=harbourmaster", partner, HTML),
        page("search, one entry", "/clients?q=lighthouse", partner, HTML),
        page("search, one of theirs", "/clients?q=lighthouse", consultant, HTML),
        page(ALL_FIT, "/clients?q=client", partner, HTML),
        page("record, owner", &record, consultant, HTML),
        page("record as JSON", &record, consultant, JSON),
    ]
}

/// Compares session, policy, read and audit row with the read alone.
async fn compare_with_bare(firm: &Firm, url: &str, options: &Options) {
    let record = Page {
        what: "permitted read",
        path: format!("/clients/{}", firm.record),
        session: firm.consultant.clone(),
        accept: JSON,
    };
    // CPU time has a resolution of 10 ms, so it takes many requests to see a difference.
    let requests = options.requests * 5;
    let mut this = Command::new(std::env::current_exe().unwrap());
    this.args(["--bare", url]);
    let bare = Server::start(this, bare::LISTEN).await;
    let bare_figure = figure(&bare, &record, requests).await;
    drop(bare);
    let portal = Server::chancery(&options.chancery, url).await;
    let permitted = figure(&portal, &record, requests).await;
    println!(
        "\npermitted read of a record: {:.3} ms of CPU; a bare handler that only reads it: {:.3} ms; {:.2} x (aim: at most 2 x)",
        in_ms(permitted.cpu),
        in_ms(bare_figure.cpu),
        permitted.cpu.as_secs_f64() / bare_figure.cpu.as_secs_f64()
    );
}
