//! Measures what Chancery costs in front of a server that generates text, such as llama-server or vLLM on a GPU: direct
//! streaming, direct whole replies, and both through Chancery, in alternating rounds.
//!
//!     make bench-gpu ARGS="--upstream http://127.0.0.1:8080 --model NAME"    everything; writes bench/RESULTS.md
//!     make bench-gpu ARGS="--upstream … --model NAME --clients 1"            a part; only prints
//!
//! The server must run already, with room for as many requests as there are clients. The program starts Chancery itself.

mod clients;
mod tables;

use crate::clients::{Path, Requests};
use crate::tables::{Load, Report};
use chancery_bench::accounts::unlimited_keys;
use chancery_bench::chancery_gateway::Gateway;
use chancery_bench::noise::NoiseWatch;
use chancery_bench::processes::{ServerProcess, free_address, until_signal};
use chancery_bench::{Outcome, bar_chart, http, machine, results_page};
use chancery_store::Store;
use clap::Parser;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

const CLIENTS: [usize; 5] = [1, 4, 16, 32, 64];
const ROUNDS: usize = 3;
const REQUESTS: usize = 4;
const MAX_TOKENS: u32 = 128;
const SECTION: &str = "bench-gpu";
const CHART: &str = "bench/results/gpu.svg";

#[derive(Debug, Parser)]
#[command(about = "Measures what Chancery costs in front of a server that generates text")]
struct Arguments {
    /// The running server, such as http://127.0.0.1:8080
    #[arg(long)]
    upstream: String,
    /// The model's name on that server
    #[arg(long)]
    model: String,
    /// What the server is, for the results: name, version, model file, GPU
    #[arg(long, default_value = "not described; pass --description")]
    description: String,
    /// Chancery's release build
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// Numbers of concurrent clients
    #[arg(long, value_delimiter = ',', default_values_t = CLIENTS)]
    clients: Vec<usize>,
    /// Rounds; the four paths are measured one after another in each
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Requests of each client in a round
    #[arg(long, default_value_t = REQUESTS)]
    requests: usize,
    /// Longest reply
    #[arg(long, default_value_t = MAX_TOKENS)]
    max_tokens: u32,
    /// Write the results to bench/RESULTS.md, as a full run does
    #[arg(long)]
    write: bool,
}

impl Arguments {
    fn is_everything(&self) -> bool {
        self.clients == CLIENTS
            && self.rounds == ROUNDS
            && self.requests == REQUESTS
            && self.max_tokens == MAX_TOKENS
    }

    fn base_url(&self) -> &str {
        self.upstream.trim_end_matches('/').trim_end_matches("/v1")
    }

    fn upstream_address(&self) -> Outcome<SocketAddr> {
        let host = self.base_url().strip_prefix("http://").ok_or("--upstream must begin with http://")?;
        let mut addresses = host
            .to_socket_addrs()
            .map_err(|error| format!("--upstream has no host and port: {host}: {error}"))?;
        addresses.next().ok_or_else(|| format!("--upstream has no address: {host}").into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    until_signal(compare(&arguments)).await
}

async fn compare(arguments: &Arguments) -> Outcome<()> {
    let direct = arguments.upstream_address()?;
    let (chancery, address, key) = start_chancery(arguments).await?;
    let path = |name, address, key, is_streamed| Path { name, address, key, is_streamed };
    let paths = [
        path("direct, streamed", direct, None, true),
        path("through Chancery, streamed", address, Some(key.clone()), true),
        path("direct, whole", direct, None, false),
        path("through Chancery, whole", address, Some(key), false),
    ];
    let mut report = Report::default();
    let watch = NoiseWatch::start([chancery.id()].into_iter(), &[])?;
    let mut numbers = Numbers { model: &arguments.model, max_tokens: arguments.max_tokens, used: 0 };
    for path in &paths {
        // Unmeasured: the server reads the shared instructions, and connections open.
        clients::run(path, &numbers.take(1), 1).await?;
    }
    for clients in &arguments.clients {
        let mut load = Load { clients: *clients, paths: Default::default() };
        for round in 0..arguments.rounds {
            // The order rotates, so that no path always goes first.
            for turn in 0..paths.len() {
                let index = (turn + round) % paths.len();
                let requests = numbers.take(clients * arguments.requests);
                load.paths[index].push(clients::run(&paths[index], &requests, *clients).await?);
            }
        }
        eprintln!("{}", load.one_line());
        report.loads.push(load);
    }
    report.chancery_cores = chancery.cpu_time()?.as_secs_f64() / report.own_seconds().max(f64::EPSILON);
    report.busy_with_others = watch.share_of_others()?;
    let machine = machine::describe()?;
    let command = machine::repeat_command(SECTION, &["--description"]);
    let section = tables::section(&machine, &arguments.description, &command, &report);
    println!("\n{section}");
    if arguments.is_everything() || arguments.write {
        results_page::put(results_page::RESULTS, SECTION, &section)?;
        bar_chart::write(&tables::chart(&report), CHART)?;
        eprintln!("written: {}, {CHART}", results_page::RESULTS);
    }
    Ok(())
}

/// Numbers prompts across the run, so that none is sent twice.
struct Numbers<'a> {
    model: &'a str,
    max_tokens: u32,
    used: usize,
}

impl<'a> Numbers<'a> {
    fn take(&mut self, count: usize) -> Requests<'a> {
        let first = self.used;
        self.used += count;
        Requests { model: self.model, max_tokens: self.max_tokens, numbers: first..self.used }
    }
}

/// Starts Chancery with SQLite in front of the server; returns its address and a key.
async fn start_chancery(arguments: &Arguments) -> Outcome<(ServerProcess, SocketAddr, String)> {
    let (folder, address) = (tempfile::tempdir()?, free_address()?);
    let database_url = format!("sqlite:{}", folder.path().join("bench.db").display());
    let store = Store::open(&database_url.parse()?).await?;
    let key = unlimited_keys(&store, 1).await.pop().ok_or("no key")?;
    store.close().await;
    let (binary, upstream) = (arguments.chancery.canonicalize()?, format!("{}/v1", arguments.base_url()));
    let gateway = Gateway {
        binary: &binary,
        address,
        database_url: &database_url,
        redis: None,
        model: &arguments.model,
        upstream: &upstream,
    };
    let command = gateway.command(folder.path())?;
    let mut process = ServerProcess::spawn("Chancery", command, folder)?;
    // Without a key it answers 401, which is good enough: its listeners open when the upstream is known.
    process.wait_until_ready(async || http::get(address, "/v1/models").await.is_ok()).await?;
    Ok((process, address, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_with_other_settings_is_a_part() {
        let is_everything = |more: &[&str]| {
            let required = ["gpu_front", "--upstream", "http://127.0.0.1:8080", "--model", "m"];
            Arguments::parse_from(required.iter().chain(more)).is_everything()
        };
        assert!(is_everything(&[]));
        for part in [["--clients", "1"], ["--rounds", "1"], ["--requests", "1"], ["--max-tokens", "8"]] {
            assert!(!is_everything(&part), "{part:?}");
        }
    }

    #[test]
    fn upstream_url_may_end_with_a_slash_or_the_version() {
        for end in ["", "/", "/v1", "/v1/"] {
            let url = format!("http://127.0.0.1:8080{end}");
            let arguments = Arguments::parse_from(["gpu_front", "--upstream", &url, "--model", "m"]);
            assert_eq!(arguments.upstream_address().unwrap().to_string(), "127.0.0.1:8080", "{url}");
        }
    }
}
