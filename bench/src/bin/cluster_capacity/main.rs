//! Measures the figures in docs/scaling.md: the PostgreSQL cost of a settled request with one, two and three writers, the bytes
//! per row of each table and index, whether lookup and admission slow down with more accounts and rows, the Redis cost of rate
//! limits, and the cost of an HTTP request to a node with an upstream that answers at once.
//!
//!     make bench-capacity
//!     target/release/cluster_capacity --postgres postgres://postgres@localhost/postgres --redis redis://localhost --part http
//!
//! Both servers must run on this machine, and the PostgreSQL user must be a superuser; otherwise their CPU time cannot be read.
//! The program creates a database and drops it at the end; its Redis keys expire within a minute. Every rate is printed with the
//! share of the machine that other programs used. If that share is high, the rate means little, but CPU time and bytes still do.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

mod accounts;
mod growth;
mod http_path;
mod limits;
mod postgres;
mod settling;
mod sizes;

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Settled requests per second, and the cost of a row
    Settling,
    /// Bytes per row, and which costs grow with accounts and rows
    Growth,
    /// Redis cost of rate limits
    Limits,
    /// Cost of an HTTP request to a node
    Http,
}

#[derive(Parser)]
struct Options {
    /// PostgreSQL server, given as the URL of one of its databases
    #[arg(long)]
    postgres: String,
    /// URL of the Redis server
    #[arg(long)]
    redis: String,
    /// The binary to measure over HTTP
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// Parts to measure (default: all)
    #[arg(long, value_delimiter = ',')]
    part: Vec<Part>,
    /// Seconds to measure each rate
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Number of accounts of a large firm
    #[arg(long, default_value_t = 1_000_000)]
    accounts: i64,
    /// Number of ledger rows of a large firm in one month
    #[arg(long, default_value_t = 10_000_000)]
    rows: i64,
    /// Numbers of nodes to measure over HTTP
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    nodes: Vec<usize>,
    /// Numbers of connections to all nodes together
    #[arg(long, value_delimiter = ',', default_value = "1,32,256")]
    connections: Vec<usize>,
    /// A tokenizer.json that the nodes count tokens with; without it they use the upstream's counts
    #[arg(long)]
    tokenizer: Option<PathBuf>,
}

impl Options {
    fn measured(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn wants(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    if options.wants(Part::Settling) {
        settling::measure(&options).await;
    }
    if options.wants(Part::Growth) {
        growth::measure(&options).await;
    }
    if options.wants(Part::Limits) {
        limits::measure(&options).await;
    }
    if options.wants(Part::Http) {
        http_path::measure(&options).await;
    }
}
