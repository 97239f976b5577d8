//! Measures how the usage and invoice pages scale with the ledger: one year with 10,000 and with 10 million rows, requested over
//! HTTP by a partner. Also times issuing an invoice.
//!
//!     make bench-billing
//!     target/release/billing_pages --chancery target/release/chancery --postgres postgres://postgres@localhost/postgres
//!
//! The portal is the real binary in its own process. Only figures from the same run are comparable. `--postgres` creates a
//! database there and drops it at the end.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

mod year;

use chancery_bench::portal::{Figure, HTML, JSON, Measured, Page, Server, exit_code, figure, print_figures};
use chancery_domain::{Clock, SystemClock};
use chancery_test_support::PostgresDatabase;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use year::Year;

#[derive(Parser)]
struct Options {
    /// The binary to measure
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// Ledger sizes in rows, ascending
    #[arg(long, value_delimiter = ',', default_value = "10000,10000000")]
    rows: Vec<u64>,
    /// Requests per figure
    #[arg(long, default_value_t = 200)]
    requests: u32,
    /// Measure on this PostgreSQL server too, given as the URL of one of its databases
    #[arg(long)]
    postgres: Option<String>,
    /// Skip SQLite
    #[arg(long)]
    skip_sqlite: bool,
}

/// How many times as expensive a page may be at the largest size as at the smallest.
const AIM: u32 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let mut beyond = Vec::new();
    if !options.skip_sqlite {
        heading("SQLite", &options);
        let mut sizes = Vec::new();
        for rows in &options.rows {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", folder.path().join("billing.db").display());
            sizes.push(measure(&url, *rows, &options).await);
        }
        beyond.extend(print("SQLite", &options, &sizes));
    }
    if let Some(admin_url) = &options.postgres {
        heading("PostgreSQL", &options);
        let mut sizes = Vec::new();
        for rows in &options.rows {
            let database = PostgresDatabase::create_at(admin_url, "bench");
            sizes.push(measure(&database.url(), *rows, &options).await);
        }
        beyond.extend(print("PostgreSQL", &options, &sizes));
    }
    exit_code(&beyond)
}

fn heading(database: &str, options: &Options) {
    let requests = options.requests;
    println!(
        "\n{database}: median of {requests} requests, one at a time, and the server's CPU time for each\n"
    );
}

/// Issues invoices first, then requests the pages. Each size has its own database: an invoiced month accepts no more rows, so one
/// size cannot grow into the next.
async fn measure(url: &str, rows: u64, options: &Options) -> Vec<Figure> {
    let filling = SystemClock.monotonic();
    let year = Year::filled(url, rows).await;
    eprintln!("{rows} rows after {:.0} s", (SystemClock.monotonic() - filling).as_secs_f64());
    let server = Server::chancery(&options.chancery, url).await;
    let mut figures = vec![issue(&server, &year).await];
    for page in pages(&year) {
        figures.push(figure(&server, &page, options.requests).await);
    }
    year.close().await;
    figures
}

const ISSUING: &str = "issuing an invoice";
const PAGES: [&str; 8] = [
    "usage, one account",
    "usage, all accounts",
    "usage as JSON",
    "invoices",
    "draft of a month",
    "issued invoice",
    "its PDF",
    "accounts",
];

/// Returns the figures that miss their target.
fn print(database: &str, options: &Options, sizes: &[Vec<Figure>]) -> Vec<String> {
    let columns: Vec<String> = options.rows.iter().map(|size| format!("{size} rows")).collect();
    let measured: Vec<Measured> =
        [ISSUING].into_iter().chain(PAGES).map(|what| Measured { what, aim: Some(AIM) }).collect();
    let beyond = print_figures(&measured, &columns, sizes);
    beyond.into_iter().map(|page| format!("{database}, {page}")).collect()
}

fn pages(year: &Year) -> Vec<Page> {
    let (account, month, issued) = (year.first_account(), year.shown_month(), year.year_of_issue());
    let targets = [
        (format!("/usage?account={account}&month={month}"), HTML),
        (format!("/usage?month={month}"), HTML),
        (format!("/usage?month={month}"), JSON),
        ("/invoices".to_owned(), HTML),
        (format!("/invoices/drafts/{account}/{month}"), HTML),
        (format!("/invoices/{issued}-0001"), HTML),
        (format!("/invoices/{issued}-0001.pdf"), HTML),
        ("/accounts".to_owned(), HTML),
    ];
    let page = |(what, (path, accept))| Page { what, path, session: year.partner.clone(), accept };
    PAGES.into_iter().zip(targets).map(page).collect()
}

/// Issues one month for every account.
async fn issue(server: &Server, year: &Year) -> Figure {
    let mut connection = server.connect().await;
    let cpu_before = server.cpu_time();
    let mut times = Vec::new();
    for path in year.months_to_issue() {
        let began = SystemClock.monotonic();
        let response = connection.post(&path, &year.partner.cookie).await;
        times.push(SystemClock.monotonic() - began);
        assert_eq!(response.status, 303, "{path}: {}", String::from_utf8_lossy(&response.body));
    }
    times.sort_unstable();
    let issued = times.len() as u32;
    Figure { median: times[times.len() / 2], cpu: (server.cpu_time() - cpu_before) / issued }
}
