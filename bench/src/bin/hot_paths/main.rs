//! Runs one hot path a given number of times, so that its instructions can be counted: scripts/check-perf runs it under
//! callgrind with two numbers of iterations. The difference is the cost of the iterations alone, on all threads, without
//! set-up and warm-up.
//!
//!     target/release/hot_paths list
//!     target/release/hot_paths run generate 100

#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to clean up")]

mod api;
mod embedded;
mod pages;
mod settling;
mod upstream;

use chancery_bench::portal::{HTML, JSON};
use chancery_bench::{Outcome, instant_upstream};
use clap::{Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;

#[derive(Debug, Parser)]
#[command(about = "Runs one hot path a given number of times")]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Action {
    /// Print the name of every path, and numbers of iterations that make its cost stand out from noise
    List,
    /// Run a path
    Run { path: HotPath, iterations: usize },
    /// Serve the instant upstream; started by the path that needs it
    Upstream { address: SocketAddr },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HotPath {
    /// POST /v1/generate through the router, with an engine that answers at once and a SQLite ledger
    Generate,
    /// POST /v1/chat/completions, streamed, with the same
    ChatStream,
    /// Settling a request in SQLite
    Settle,
    /// A permitted read of a client's record, as HTML
    Record,
    /// The same as JSON
    RecordJson,
    /// A reply from an upstream server: request, parsing of its events, counting
    UpstreamReply,
    /// Tokenizing two kilobytes of text
    Tokenize,
    /// A decode step of a small model
    Decode,
    /// A prefill step of a small model with 64 tokens
    Prefill,
    /// A sampled reply of the embedded engine with a small model
    SampledReply,
}

impl HotPath {
    /// Large enough that background work and random seeds disappear in the difference, small enough for seconds under callgrind.
    fn iterations(self) -> usize {
        match self {
            Self::Generate | Self::ChatStream | Self::UpstreamReply => 200,
            Self::Settle => 400,
            Self::Record | Self::RecordJson => 60,
            Self::Tokenize | Self::Decode => 300,
            Self::Prefill => 40,
            Self::SampledReply => 10,
        }
    }
}

/// All work of the process happens on this thread and on threads that the measured code starts itself.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    match Arguments::parse().action {
        Action::List => {
            for path in HotPath::value_variants() {
                let value = path.to_possible_value().ok_or("a path without a name")?;
                println!("{} {}", value.get_name(), path.iterations());
            }
        }
        Action::Run { path, iterations } => run(path, iterations).await,
        Action::Upstream { address } => instant_upstream::serve_for_parent(address).await?,
    }
    Ok(())
}

async fn run(path: HotPath, iterations: usize) {
    match path {
        HotPath::Generate => api::generate(iterations).await,
        HotPath::ChatStream => api::chat_stream(iterations).await,
        HotPath::Settle => settling::settle(iterations).await,
        HotPath::Record => pages::read_record(HTML, iterations).await,
        HotPath::RecordJson => pages::read_record(JSON, iterations).await,
        HotPath::UpstreamReply => upstream::read_replies(iterations).await,
        HotPath::Tokenize => embedded::tokenize(iterations),
        HotPath::Decode => embedded::decode(iterations),
        HotPath::Prefill => embedded::prefill(iterations),
        HotPath::SampledReply => embedded::sample(iterations).await,
    }
}
