//! Compares Chancery with other gateways in front of an upstream that answers at once: smg, LiteLLM and Portkey; nginx,
//! which only forwards, is the floor. All get the same requests over connections that are kept open, in alternating rounds.
//! Chancery runs with its defaults: keys, accounts, metering and a durable ledger.
//!
//!     make bench-gateway                                                       everything; writes bench/RESULTS.md
//!     scripts/with-services make bench-gateway                                 with PostgreSQL and Redis in addition
//!     make bench-gateway ARGS="--connections 1,32 --rounds 1 --peers nginx"    a part; only prints
//!
//! The program starts and stops all servers itself and is the load generator. The upstream is this program in another process.
//! `scripts/bench-gateway-peers` installs the others; docs/benchmarks.md says how they are run, and why.

mod cells;
mod flush;
mod load;
mod losses;
mod servers;
mod side;
mod tables;

use crate::cells::Cell;
use crate::flush::Flush;
use crate::servers::{Parts, Server, Upstream};
use crate::side::{Mode, Side};
use crate::tables::Report;
use chancery_bench::noise::NoiseWatch;
use chancery_bench::processes::until_signal;
use chancery_bench::{Outcome, bar_chart, instant_upstream, machine, results_page};
use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const CONNECTIONS: [usize; 4] = [1, 8, 32, 128];
const ROUNDS: usize = 3;
const SECONDS: u64 = 5;
const SECTION: &str = "bench-gateway";
const CHART: &str = "bench/results/gateway.svg";

#[derive(Debug, Parser)]
#[command(about = "Compares Chancery with other gateways in front of an upstream that answers at once")]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// Chancery's release build
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// The directory that scripts/bench-gateway-peers printed; without it, Chancery is measured alone
    #[arg(long)]
    peers_folder: Option<PathBuf>,
    /// A PostgreSQL server on this machine, as the URL of one of its databases; with --redis, Chancery is measured on both too
    #[arg(long, requires = "redis")]
    postgres: Option<String>,
    /// A Redis server on this machine
    #[arg(long, requires = "postgres")]
    redis: Option<String>,
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', default_values_t = CONNECTIONS)]
    connections: Vec<usize>,
    /// Only whole or only streamed replies
    #[arg(long)]
    mode: Option<Mode>,
    /// Compare only with these
    #[arg(long, value_delimiter = ',')]
    peers: Option<Vec<Side>>,
    /// Rounds; the servers run one after another in each
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Measured seconds of each round
    #[arg(long, default_value_t = SECONDS)]
    seconds: u64,
    /// Write the results to bench/RESULTS.md, as a full run does
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Part {
    /// Serves the instant upstream; started by the benchmark itself
    Upstream { address: SocketAddr },
}

impl Arguments {
    fn is_everything(&self) -> bool {
        self.connections == CONNECTIONS
            && self.mode.is_none()
            && self.peers.is_none()
            && self.peers_folder.is_some()
            && self.rounds == ROUNDS
            && self.seconds == SECONDS
    }

    fn modes(&self) -> Vec<Mode> {
        self.mode.map_or_else(|| Mode::ALL.to_vec(), |mode| vec![mode])
    }

    fn sides(&self) -> Vec<Side> {
        let is_measured = |side: &Side| match side {
            Side::Direct | Side::Chancery => true,
            Side::Cluster => self.postgres.is_some(),
            peer => {
                self.peers_folder.is_some() && self.peers.as_ref().is_none_or(|peers| peers.contains(peer))
            }
        };
        Side::ALL.into_iter().filter(is_measured).collect()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    if let Some(Part::Upstream { address }) = arguments.part {
        return instant_upstream::serve_for_parent(address).await;
    }
    until_signal(compare(&arguments)).await
}

async fn compare(arguments: &Arguments) -> Outcome<()> {
    let upstream = Upstream::start().await?;
    let parts = Parts {
        chancery: arguments.chancery.clone(),
        peers: arguments.peers_folder.clone(),
        postgres: arguments.postgres.clone(),
        redis: arguments.redis.clone(),
        upstream: upstream.address(),
    };
    let versions = parts.versions()?;
    let mut servers = Vec::new();
    for side in arguments.sides() {
        servers.push(Server::start(side, &parts).await?);
        eprintln!("{side} is ready");
    }
    let report = measure(arguments, &upstream, &servers).await?;
    let machine = machine::describe()?;
    let command = machine::repeat_command(SECTION, &["--peers-folder", "--postgres", "--redis"]);
    let section = tables::section(&machine, &versions, &command, &report);
    println!("\n{section}");
    if arguments.is_everything() || arguments.write {
        results_page::put(results_page::RESULTS, SECTION, &section)?;
        bar_chart::write(&tables::chart(&report), CHART)?;
        eprintln!("written: {}, {CHART}", results_page::RESULTS);
    }
    Ok(())
}

async fn measure(arguments: &Arguments, upstream: &Upstream, servers: &[Server]) -> Outcome<Report> {
    let measured = Duration::from_secs(arguments.seconds);
    let mut report = Report { seconds: arguments.seconds, rounds: arguments.rounds, ..Report::default() };
    for mode in arguments.modes() {
        for connections in &arguments.connections {
            let mut cells: Vec<Cell> =
                servers.iter().map(|server| Cell::new(server.side(), mode, *connections)).collect();
            for round in 0..arguments.rounds {
                if *connections == 1 {
                    report.flushes.push(Flush::measure()?);
                }
                // The order rotates, so that no side always goes first.
                for turn in 0..servers.len() {
                    let index = (turn + round) % servers.len();
                    let processes = servers.iter().filter_map(Server::process).chain([upstream.process()]);
                    let noise = NoiseWatch::start(processes, servers::DATABASES)?;
                    let measurement =
                        cells::measure(&servers[index], upstream, mode, *connections, measured).await?;
                    report.busy_with_others = report.busy_with_others.max(noise.share_of_others()?);
                    cells[index].rounds.push(measurement);
                }
            }
            for cell in &cells {
                eprintln!("{}", cell.one_line());
            }
            report.cells.extend(cells);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(arguments: &[&str]) -> Vec<Side> {
        Arguments::parse_from(["gateway_peers"].iter().chain(arguments)).sides()
    }

    #[test]
    fn only_installed_peers_and_given_databases_are_measured() {
        assert_eq!(sides(&[]), [Side::Chancery, Side::Direct]);
        assert_eq!(
            sides(&["--peers-folder", "/cache", "--peers", "nginx"]),
            [Side::Chancery, Side::Direct, Side::Nginx]
        );
        assert_eq!(
            sides(&["--postgres", "postgres://localhost/a", "--redis", "redis://localhost"]),
            [Side::Chancery, Side::Direct, Side::Cluster]
        );
    }

    #[test]
    fn full_run_needs_the_peers() {
        let arguments = |list: &[&str]| Arguments::parse_from(["gateway_peers"].iter().chain(list));
        assert!(!arguments(&[]).is_everything());
        assert!(arguments(&["--peers-folder", "/cache"]).is_everything());
        assert!(!arguments(&["--peers-folder", "/cache", "--rounds", "1"]).is_everything());
    }
}
