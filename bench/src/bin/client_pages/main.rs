//! Measures how the portal's pages scale with the firm: the list, its searches, a record and the accounts, requested over
//! HTTP by a signed-in user, at 100 and at 100,000 clients and accounts. Also compares a permitted read of a record with a
//! handler that only reads the row (`permitted_read`), and tests whether the response time of a denial reveals that a client
//! exists (`--denied` runs only that).
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

mod accounts;
mod bare;
mod denied;
mod permitted_read;

use chancery_bench::firm::Firm;
use chancery_bench::people::SignedIn;
use chancery_bench::portal::{HTML, JSON, Measured, Page, Server, exit_code, figure, print_figures};
use chancery_domain::{Clock, SystemClock};
use chancery_test_support::PostgresDatabase;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

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
    let (mut sizes, mut accounts) = (Vec::new(), 0);
    for size in &options.clients {
        let filling = SystemClock.monotonic();
        firm.grow_to(*size).await;
        accounts::add(url, accounts..*size).await;
        accounts = *size;
        eprintln!("{size} clients after {:.0} s", (SystemClock.monotonic() - filling).as_secs_f64());
        let server = Server::chancery(&options.chancery, url).await;
        let mut figures = Vec::new();
        for page in pages(&firm) {
            figures.push(figure(&server, &page, options.requests).await);
        }
        sizes.push(figures);
    }
    let measured = |page: &Page| Measured { what: page.what, aim: Some(AIM) };
    let measured: Vec<Measured> = pages(&firm).iter().map(measured).collect();
    let columns: Vec<String> = options.clients.iter().map(|size| format!("{size} clients")).collect();
    let mut beyond = print_figures(&measured, &columns, &sizes);
    beyond.extend(permitted_read::compare(&firm, &options.chancery, url, options.requests).await);
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
        page("search, all fit", "/clients?q=client", partner, HTML),
        page("two words, all fit", "/clients?q=quarter+bookkeeper", partner, HTML),
        page("two words, all of theirs", "/clients?q=quarter+bookkeeper", consultant, HTML),
        page("all fit, by owner", "/clients?q=client&sort=owner", partner, HTML),
        page("accounts", "/accounts", partner, HTML),
        page("accounts, later page", accounts::LATER_PAGE, partner, HTML),
        page("record, owner", &record, consultant, HTML),
        page("record as JSON", &record, consultant, JSON),
    ]
}
