//! What docs/scaling.md counts with: what a settled request costs PostgreSQL by one, two and three writers, how many bytes a row of each
//! table and of each index takes, whether looking up and admitting grow with accounts and rows, what the limits cost Redis, and what
//! a request costs a node over HTTP, with an upstream that answers at once.
//!
//!     make bench-capacity
//!     target/release/cluster_capacity --postgres postgres://postgres@localhost/postgres --redis redis://localhost --part http
//!
//! Both servers must run on this machine, and a superuser must ask, or their CPU time cannot be read. A database is made, and dropped at
//! the end; keys of Redis leave by themselves within a minute. What other programs took of the machine is told with every rate: where
//! that is much, the rate says little, and CPU time and bytes still say something.
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
mod upstream;
mod watch;

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Settled requests per second, and what a row costs
    Settling,
    /// Bytes per row, and what grows with accounts and rows
    Growth,
    /// What the limits cost Redis
    Limits,
    /// A node over HTTP
    Http,
}

#[derive(Parser)]
struct Options {
    /// A PostgreSQL server, by the address of a database there
    #[arg(long)]
    postgres: String,
    /// A Redis server
    #[arg(long)]
    redis: String,
    /// The binary to measure over HTTP
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// What to measure; without it, everything
    #[arg(long, value_delimiter = ',')]
    part: Vec<Part>,
    /// How long each rate is measured
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Accounts of a large firm
    #[arg(long, default_value_t = 1_000_000)]
    accounts: i64,
    /// Ledger rows of a large firm, in one month
    #[arg(long, default_value_t = 10_000_000)]
    rows: i64,
    /// Nodes over HTTP
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    nodes: Vec<usize>,
    /// Connections to all nodes together
    #[arg(long, value_delimiter = ',', default_value = "1,32,256")]
    connections: Vec<usize>,
    /// A tokenizer.json for the nodes to count by; without it they believe the upstream's counts
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
