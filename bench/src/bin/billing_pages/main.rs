//! What the pages about usage and invoices cost when the ledger grows: a year of it, with 10,000 and with 10 million rows, asked for
//! over HTTP by a partner; and what issuing an invoice takes.
//!
//!     make bench-billing
//!     target/release/billing_pages --chancery target/release/chancery --postgres postgres://postgres@localhost/postgres
//!
//! The portal is the real binary, in a process of its own. Only figures of one run can be compared. With `--postgres` a database is made there, and dropped at the end.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

mod year;

use chancery_bench::portal::{Figure, HTML, JSON, Measured, Page, Server, ended, figure, print_figures};
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
    /// Rows of the ledger, rising
    #[arg(long, value_delimiter = ',', default_value = "10000,10000000")]
    rows: Vec<u64>,
    /// Requests for each figure
    #[arg(long, default_value_t = 200)]
    requests: u32,
    /// A PostgreSQL server to measure on too, by the address of a database there
    #[arg(long)]
    postgres: Option<String>,
    /// Leave SQLite out
    #[arg(long)]
    skip_sqlite: bool,
}

/// How much dearer a page may be at the largest size than at the smallest.
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
    ended(&beyond)
}

fn heading(database: &str, options: &Options) {
    let requests = options.requests;
    println!(
        "\n{database}: median of {requests} requests, one at a time, and the server's CPU time for each\n"
    );
}

/// Issuing first, then the pages. In a database of its own: an invoiced month takes no more rows, so one cannot grow into the next size.
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

/// Gives what is beyond its aim.
fn print(database: &str, options: &Options, sizes: &[Vec<Figure>]) -> Vec<String> {
    let columns: Vec<String> = options.rows.iter().map(|size| format!("{size} rows")).collect();
    let measured: Vec<Measured> =
        [ISSUING].into_iter().chain(PAGES).map(|what| Measured { what, aim: Some(AIM) }).collect();
    let beyond = print_figures(&measured, &columns, sizes);
    beyond.into_iter().map(|page| format!("{database}, {page}")).collect()
}

fn pages(year: &Year) -> Vec<Page> {
    let (account, month, issued) = (year.first_account(), year.shown_month(), year.year_of_issue());
    let asked = [
        (format!("/usage?account={account}&month={month}"), HTML),
        (format!("/usage?month={month}"), HTML),
        (format!("/usage?month={month}"), JSON),
        ("/invoices".to_owned(), HTML),
        (format!("/invoices/drafts/{account}/{month}"), HTML),
        (format!("/invoices/{issued}-0001"), HTML),
        (format!("/invoices/{issued}-0001.pdf"), HTML),
        ("/accounts".to_owned(), HTML),
    ];
    let page = |(what, (path, accept))| Page { what, path, who: year.partner.clone(), accept };
    PAGES.into_iter().zip(asked).map(page).collect()
}

/// One month of every account.
async fn issue(server: &Server, year: &Year) -> Figure {
    let mut connection = server.connect().await;
    let cpu_before = server.cpu_time();
    let mut times = Vec::new();
    for path in year.months_to_issue() {
        let began = SystemClock.monotonic();
        let answer = connection.post(&path, &year.partner.cookie).await;
        times.push(SystemClock.monotonic() - began);
        assert_eq!(answer.status, 303, "{path}: {}", String::from_utf8_lossy(&answer.body));
    }
    times.sort_unstable();
    let issued = times.len() as u32;
    Figure { median: times[times.len() / 2], cpu: (server.cpu_time() - cpu_before) / issued }
}
