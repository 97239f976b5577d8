//! What the portal's pages cost when a firm grows: the list, its searches and a record, asked for over HTTP by somebody who is
//! signed in, at 100 and at 100,000 clients; and what a permitted read of a record costs beside a handler that only reads the row.
//!
//!     make bench-portal
//!     target/release/client_pages --chancery target/release/chancery --postgres postgres://postgres@localhost/postgres
//!
//! The portal is the real binary, in a process of its own, and so is the bare handler; this one asks, one request at a time.
//! Only figures of one run can be compared. With `--postgres` a database is made there, and dropped at the end.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

mod bare;
mod firm;
mod server;

use chancery_domain::{Clock, SystemClock};
use clap::Parser;
use firm::{Firm, SignedIn};
use server::{Answer, Server};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
struct Options {
    /// The binary to measure
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// Numbers of clients, rising
    #[arg(long, value_delimiter = ',', default_value = "100,100000")]
    clients: Vec<u64>,
    /// Requests for each figure
    #[arg(long, default_value_t = 400)]
    requests: u32,
    /// A PostgreSQL server to measure on too, by the address of a database there
    #[arg(long)]
    postgres: Option<String>,
    /// Be the bare handler for this database
    #[arg(long, hide = true)]
    bare: Option<String>,
}

/// Asked before anything is measured: pools fill, statements are prepared, pages are read from disk.
const WARM_UP: u32 = 40;

#[tokio::main]
async fn main() {
    let options = Options::parse();
    if let Some(url) = &options.bare {
        return bare::serve(url).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("pages.db").display());
    measure("SQLite", &sqlite, &options).await;
    if let Some(admin_url) = &options.postgres {
        let database = firm::PostgresDatabase::create(admin_url).await;
        measure("PostgreSQL", &database.url(), &options).await;
        database.drop_it().await;
    }
}

/// What is asked for, as whom, and how.
struct Page {
    what: &'static str,
    path: String,
    who: SignedIn,
    accept: &'static str,
}

const HTML: &str = "text/html";
const JSON: &str = "application/json";

async fn measure(name: &str, url: &str, options: &Options) {
    println!(
        "\n{name}: median of {} requests, one at a time, and the server's CPU time for each\n",
        options.requests
    );
    let mut firm = Firm::open(url).await;
    let mut sizes: Vec<Vec<Figure>> = Vec::new();
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
    print_pages(&pages(&firm), &options.clients, &sizes);
    compare_with_bare(&firm, url, options).await;
    firm.close().await;
}

fn pages(firm: &Firm) -> Vec<Page> {
    let page = |what, path: &str, who: &SignedIn, accept| Page {
        what,
        path: path.to_owned(),
        who: who.clone(),
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
        page("search, all fit", "/clients?q=client", partner, HTML),
        page("record, owner", &record, consultant, HTML),
        page("record as JSON", &record, consultant, JSON),
    ]
}

struct Figure {
    median: Duration,
    /// Of the server's process, for each request.
    cpu: Duration,
}

async fn figure(server: &Server, page: &Page, requests: u32) -> Figure {
    let mut connection = server.connect().await;
    for _ in 0..WARM_UP {
        let Answer { status, body } = connection.get(&page.path, &page.who.cookie, page.accept).await;
        assert_eq!(status, 200, "{}: {}", page.path, String::from_utf8_lossy(&body));
    }
    let cpu_before = server.cpu_time();
    let mut times = Vec::with_capacity(requests as usize);
    for _ in 0..requests {
        let began = SystemClock.monotonic();
        let answer = connection.get(&page.path, &page.who.cookie, page.accept).await;
        times.push(SystemClock.monotonic() - began);
        assert_eq!(answer.status, 200, "{}", page.path);
    }
    times.sort_unstable();
    Figure { median: times[times.len() / 2], cpu: (server.cpu_time() - cpu_before) / requests }
}

fn print_pages(pages: &[Page], clients: &[u64], sizes: &[Vec<Figure>]) {
    print!("{:<22}", "");
    clients.iter().for_each(|size| print!("{:>24}", format!("{size} clients")));
    println!("{:>18}", "last to first");
    for (place, page) in pages.iter().enumerate() {
        print!("{:<22}", page.what);
        for figures in sizes {
            let Figure { median, cpu } = &figures[place];
            print!("{:>24}", format!("{:.2} ms, CPU {:.2}", in_ms(*median), in_ms(*cpu)));
        }
        if let (Some(first), Some(last)) = (sizes.first(), sizes.last()) {
            let ratio = last[place].median.as_secs_f64() / first[place].median.as_secs_f64();
            print!("{:>18}", format!("{ratio:.2} x"));
        }
        println!();
    }
    println!("\naim: at most 2 x");
}

fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Session, policy, read and audit row, against the read alone.
async fn compare_with_bare(firm: &Firm, url: &str, options: &Options) {
    let record = Page {
        what: "permitted read",
        path: format!("/clients/{}", firm.record),
        who: firm.consultant.clone(),
        accept: JSON,
    };
    // CPU time is counted in hundredths of a second, so that it takes many requests to tell them apart.
    let requests = options.requests * 5;
    let bare = Server::bare(url).await;
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
