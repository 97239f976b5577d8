//! Compares Chancery with other servers that run the same model file on a CPU: llama-server and OpenVINO GenAI. The same clients
//! send the same requests to each over HTTP, in alternating rounds. Chancery runs with its defaults: accounts, metering and a
//! durable ledger.
//!
//!     make bench-engine                                                             everything; writes bench/RESULTS.md
//!     make bench-engine ARGS="--clients 1,16 --scenario shared-short --rounds 1"    a part; only prints
//!     make bench-engine MODEL=qwen2.5-coder-0.5b                                    another model; its own section
//!
//! The program starts and stops the servers itself. `scripts/bench-peers` builds the others; docs/benchmarks.md says how they are
//! run, and why.

mod chart;
mod crowd;
mod dialect;
mod figures;
mod machine;
mod server;
mod tables;
mod workload;

use crate::crowd::Round;
use crate::figures::Figures;
use crate::server::{Isa, Parts, Server, Side};
use crate::tables::{Load, Memory, Origin, Report};
use crate::workload::{OUTPUT_TOKENS, Prompt, Scenario, prompt};
use chancery_bench::noise::NoiseWatch;
use chancery_bench::processes::until_signal;
use chancery_bench::{Outcome, bar_chart, results_page};
use clap::Parser;
use std::path::PathBuf;
use std::sync::Arc;

const CLIENTS: [usize; 4] = [1, 4, 16, 32];
const ROUNDS: usize = 3;
/// The model of the first section of RESULTS.md. Others have sections of their own.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

#[derive(Debug, Parser)]
#[command(about = "Compares Chancery with other servers of the same model on the CPU")]
struct Arguments {
    /// Chancery's release build
    #[arg(long, default_value = "target/release/chancery")]
    chancery: PathBuf,
    /// The directory that scripts/bench-peers printed
    #[arg(long)]
    peers_folder: PathBuf,
    /// The model file for all servers
    #[arg(long)]
    model: PathBuf,
    /// Numbers of concurrent clients
    #[arg(long, value_delimiter = ',', default_values_t = CLIENTS)]
    clients: Vec<usize>,
    /// Run only these scenarios
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<Scenario>,
    /// Compare only with these peers
    #[arg(long, value_delimiter = ',')]
    peers: Option<Vec<Side>>,
    /// Leave Chancery out, to try settings of the peers
    #[arg(long)]
    without_us: bool,
    /// Run only with the machine's best instruction sets, or only with those up to AVX2
    #[arg(long)]
    isa: Option<Isa>,
    /// Rounds per load; the servers run one after another in each
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Extra flags for llama-server
    #[arg(long, allow_hyphen_values = true, value_delimiter = ' ')]
    llama_flags: Vec<String>,
    /// Extra flags for bench/peers/openvino_server.py
    #[arg(long, allow_hyphen_values = true, value_delimiter = ' ')]
    openvino_flags: Vec<String>,
    /// Write the results to bench/RESULTS.md, as a full run does
    #[arg(long)]
    write: bool,
}

/// A part of the run: several loads on servers that are started once.
struct Part {
    isa: Isa,
    scenarios: Vec<Scenario>,
}

impl Arguments {
    fn is_everything(&self) -> bool {
        self.clients == CLIENTS
            && self.scenario.is_empty()
            && self.isa.is_none()
            && self.peers.is_none()
            && self.rounds == ROUNDS
            && !self.without_us
            && self.llama_flags.is_empty()
            && self.openvino_flags.is_empty()
    }

    /// Hiding instruction sets does not work on every machine, so that part comes first and fails early.
    fn parts(&self) -> Vec<Part> {
        let part = |isa, scenarios: &[Scenario]| {
            let chosen = if self.scenario.is_empty() { scenarios } else { &self.scenario };
            Part { isa, scenarios: chosen.to_vec() }
        };
        // With everything above AVX2 disabled, one kind of prompt is enough to compare.
        let parts = [part(Isa::Avx2, &[Scenario::SharedShort]), part(Isa::Best, &Scenario::ALL)];
        parts.into_iter().filter(|part| self.isa.is_none_or(|isa| isa == part.isa)).collect()
    }

    fn sides(&self) -> Vec<Side> {
        let peers = self.peers.clone().unwrap_or_else(|| vec![Side::Llama, Side::Openvino]);
        let ours = if self.without_us { None } else { Some(Side::Chancery) };
        ours.into_iter().chain(peers.into_iter().filter(|side| *side != Side::Chancery)).collect()
    }

    fn extra_flags(&self, side: Side) -> &[String] {
        match side {
            Side::Chancery => &[],
            Side::Llama => &self.llama_flags,
            Side::Openvino => &self.openvino_flags,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    until_signal(compare(&arguments)).await
}

async fn compare(arguments: &Arguments) -> Outcome<()> {
    let model_name =
        arguments.model.file_stem().and_then(|stem| stem.to_str()).ok_or("no name in --model")?;
    let parts = Parts {
        chancery: arguments.chancery.clone(),
        peers: arguments.peers_folder.clone(),
        openvino_server: "bench/peers/openvino_server.py".into(),
        model: arguments.model.clone(),
        model_name: model_name.to_owned(),
    };
    let mut report = Report::default();
    for part in arguments.parts() {
        measure(&part, arguments, &parts, &mut report).await?;
    }
    report.put_best_first();
    let machine = chancery_bench::machine::describe()?;
    let versions = machine::versions(&machine, &parts)?;
    let origin = Origin { machine, versions, command: machine::command(model_name) };
    let section = tables::section(&origin, model_name, &report);
    println!("\n{section}");
    if arguments.is_everything() || arguments.write {
        results_page::put(results_page::RESULTS, &tables::section_name(model_name), &section)?;
        let chart = format!("bench/results/{}", tables::chart_file(model_name));
        bar_chart::write(&chart::of(model_name, &report.loads), &chart)?;
        eprintln!("written: {}, {chart}", results_page::RESULTS);
    }
    Ok(())
}

async fn measure(part: &Part, arguments: &Arguments, parts: &Parts, report: &mut Report) -> Outcome<()> {
    let mut servers = Vec::new();
    for side in arguments.sides() {
        let server = Server::start(side, part.isa, parts, arguments.extra_flags(side)).await?;
        eprintln!("{side} is ready{}", if server.streams() { "" } else { "; it does not stream" });
        servers.push(Arc::new(server));
    }
    let max_clients = arguments.clients.iter().copied().max().unwrap_or(1);
    let mut numbers = Numbers::default();
    let watch = NoiseWatch::start(servers.iter().map(|server| server.process()), &[])?;
    for scenario in &part.scenarios {
        let sample_prompt = numbers.take(*scenario, 1);
        for server in &servers {
            let sample = server.ask(&sample_prompt[0], OUTPUT_TOKENS).await?;
            eprintln!(
                "{} on {} prompt tokens says: {:?}",
                server.side,
                sample.prompt_tokens,
                start_of(&sample.text)
            );
            report.samples.push((part.isa, *scenario, server.side, sample));
        }
        let warm_prompts = if scenario.shares_instructions() { max_clients } else { 1 };
        let prompts = numbers.take(*scenario, warm_prompts);
        for server in &servers {
            let warm_s = crowd::warm(server, warm_prompts, prompts.clone()).await?;
            eprintln!("{} is warm after {warm_s:.1} s", server.side);
        }
        for clients in &arguments.clients {
            let figures = measure_load(&servers, *scenario, *clients, arguments.rounds, &mut numbers).await?;
            report.loads.push(Load { isa: part.isa, scenario: *scenario, clients: *clients, figures });
            eprintln!("{}", tables::one_line(&report.loads[report.loads.len() - 1]));
        }
    }
    report.busy_with_others = report.busy_with_others.max(watch.share_of_others()?);
    for server in &servers {
        report.memory.push(Memory { isa: part.isa, side: server.side, peak_mb: server.peak_memory_mb()? });
    }
    Ok(())
}

/// Runs all rounds of one load. The order alternates, so that no side always goes first.
async fn measure_load(
    servers: &[Arc<Server>],
    scenario: Scenario,
    clients: usize,
    rounds: usize,
    numbers: &mut Numbers,
) -> Outcome<Vec<Figures>> {
    let mut measured: Vec<Vec<Round>> = servers.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        let prompts = numbers.take(scenario, scenario.requests(clients));
        let probes = numbers.take(scenario, clients);
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let outcome = crowd::run(&servers[side], clients, prompts.clone(), probes.clone()).await?;
            measured[side].push(outcome);
        }
    }
    let figures = servers.iter().zip(&measured).map(|(server, rounds)| Figures::of(server.side, rounds));
    figures.collect::<Option<_>>().ok_or_else(|| "a load without replies".into())
}

/// Numbers prompts across the run, so that no side gets one twice.
#[derive(Default)]
struct Numbers {
    used: usize,
}

impl Numbers {
    fn take(&mut self, scenario: Scenario, count: usize) -> Vec<Prompt> {
        let first = self.used;
        self.used += count;
        (first..self.used).map(|number| prompt(scenario, number)).collect()
    }
}

fn start_of(text: &str) -> String {
    text.chars().take(100).collect()
}
