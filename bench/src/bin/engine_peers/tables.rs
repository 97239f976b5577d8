//! The figures as Markdown.

use crate::DEFAULT_MODEL;
use crate::dialect::Reply;
use crate::figures::Figures;
use crate::server::{CONTEXT_TOKENS, Isa, SLOTS, Side};
use crate::workload::{OUTPUT_TOKENS, Scenario};
use chancery_bench::machine::Machine;
use std::fmt::Write as _;

/// All measurements.
#[derive(Debug, Default)]
pub struct Report {
    pub loads: Vec<Load>,
    pub memory: Vec<Memory>,
    /// The largest share of the machine that other programs used in any part of the run.
    pub busy_with_others: f64,
    /// One reply of each side to each kind of prompt, to show that all do the same work.
    pub samples: Vec<(Isa, Scenario, Side, Reply)>,
}

/// One number of clients with one kind of prompt, on all sides.
#[derive(Debug)]
pub struct Load {
    pub isa: Isa,
    pub scenario: Scenario,
    pub clients: usize,
    pub figures: Vec<Figures>,
}

#[derive(Debug)]
pub struct Memory {
    pub isa: Isa,
    pub side: Side,
    pub peak_mb: u64,
}

impl Report {
    /// Sorts the results for readers, whatever was measured first.
    pub fn put_best_first(&mut self) {
        self.loads.sort_by_key(|load| load.isa);
        self.memory.sort_by_key(|memory| memory.isa);
        self.samples.sort_by_key(|sample| sample.0);
    }
}

impl Load {
    pub fn title(&self) -> String {
        title(self.isa, self.scenario)
    }

    /// Our tokens per second divided by the best peer's.
    pub fn ratio(&self) -> Option<f64> {
        let ours = self.figures.iter().find(|figures| figures.side == Side::Chancery)?.tokens_per_s;
        let peers = self.figures.iter().filter(|figures| figures.side != Side::Chancery);
        let best = peers.map(|figures| figures.tokens_per_s).fold(0.0, f64::max);
        (best > 0.0).then(|| ours / best)
    }
}

fn title(isa: Isa, scenario: Scenario) -> String {
    match isa {
        Isa::Best => scenario.to_string(),
        Isa::Avx2 => format!("{scenario}, nothing above AVX2"),
    }
}

pub fn one_line(load: &Load) -> String {
    let mut line = format!("{}, {} clients:", load.title(), load.clients);
    for figures in &load.figures {
        let _ = write!(line, " {} {:.0},", figures.side, figures.tokens_per_s);
    }
    match load.ratio() {
        Some(ratio) => format!("{line} {ratio:.2} × the best peer"),
        None => line,
    }
}

/// Where the figures come from.
#[derive(Debug)]
pub struct Origin {
    pub machine: Machine,
    pub versions: String,
    pub command: String,
}

pub fn section(origin: &Origin, model: &str, report: &Report) -> String {
    let mut text = String::new();
    write_section(&mut text, origin, model, report);
    text
}

/// The name of a model's section in RESULTS.md.
pub fn section_name(model: &str) -> String {
    match model {
        DEFAULT_MODEL => "bench-engine".to_owned(),
        model => format!("bench-engine {model}"),
    }
}

/// The name of a model's chart, under `bench/results`.
pub fn chart_file(model: &str) -> String {
    match model {
        DEFAULT_MODEL => "engine.svg".to_owned(),
        model => format!("engine-{model}.svg"),
    }
}

fn write_section(text: &mut String, origin: &Origin, model: &str, report: &Report) {
    let _ = writeln!(
        text,
        "![Generated tokens per second of Chancery and its peers with {model}](results/{})\n",
        chart_file(model)
    );
    let Origin { machine, versions, command } = origin;
    let Machine { day, cpu, kernel, generator_share, .. } = machine;
    let _ = writeln!(text, "Model `{model}`. {day}. {cpu}, Linux {kernel}. {versions}.");
    let _ = writeln!(
        text,
        "{SLOTS} slots and {CONTEXT_TOKENS} tokens of context each on every side; replies of {OUTPUT_TOKENS} tokens, greedy. \
         The load generator took {:.1} % of one core, other programs {:.1} % of the machine. Command: `{command}`.\n",
        generator_share * 100.0,
        report.busy_with_others * 100.0,
    );
    write_ratios(text, &report.loads);
    write_losses(text, &report.loads);
    for loads in report.loads.chunk_by(|a, b| (a.isa, a.scenario) == (b.isa, b.scenario)) {
        write_loads(text, loads, &report.samples);
    }
    write_memory(text, &report.memory);
    write_samples(text, &report.samples);
}

fn write_ratios(text: &mut String, loads: &[Load]) {
    let mut clients: Vec<usize> = loads.iter().map(|load| load.clients).collect();
    clients.sort_unstable();
    clients.dedup();
    let _ = writeln!(text, "Our generated tokens per second over the best peer's, by clients at a time:\n");
    let heads: Vec<String> = clients.iter().map(usize::to_string).collect();
    let _ = writeln!(text, "| | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for row in loads.chunk_by(|a, b| (a.isa, a.scenario) == (b.isa, b.scenario)) {
        let cells = clients.iter().map(|clients| {
            let ratio = row.iter().find(|load| load.clients == *clients).and_then(Load::ratio);
            ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
        });
        let _ = writeln!(text, "| {} | {} |", row[0].title(), cells.collect::<Vec<_>>().join(" | "));
    }
    let _ = writeln!(text);
}

/// Names every load in which a peer generates more than we do.
fn write_losses(text: &mut String, loads: &[Load]) {
    let compared: Vec<&Load> = loads.iter().filter(|load| load.ratio().is_some()).collect();
    let lost: Vec<String> = compared
        .iter()
        .filter(|load| load.ratio().is_some_and(|ratio| ratio < 1.0))
        .map(|load| format!("{} with {} clients", load.title(), load.clients))
        .collect();
    if lost.is_empty() {
        let _ = writeln!(text, "No peer is ahead in any of these {} loads.\n", compared.len());
    } else {
        let _ = writeln!(text, "**A peer is ahead:** {}.\n", lost.join("; "));
    }
}

fn write_loads(text: &mut String, loads: &[Load], samples: &[(Isa, Scenario, Side, Reply)]) {
    let (isa, scenario) = (loads[0].isa, loads[0].scenario);
    let matching = samples.iter().filter(|sample| (sample.0, sample.1) == (isa, scenario));
    // The peers also count the chat template's own tokens, which are the same in all prompts.
    let max_prompt_tokens = matching.map(|sample| sample.3.prompt_tokens).max().unwrap_or_default();
    let mut title = title(isa, scenario);
    title[..1].make_ascii_uppercase();
    let _ = writeln!(text, "### {title}: {max_prompt_tokens} prompt tokens\n");
    let _ = writeln!(
        text,
        "| Clients | Server | Tokens/s (rounds) | First token p50 ms | p95 ms | Between tokens p95 ms | Tokens per reply |\n\
         |---|---|---|---|---|---|---|"
    );
    for load in loads {
        for figures in &load.figures {
            let mark = if figures.streamed { "" } else { "¹" };
            let _ = writeln!(
                text,
                "| {} | {} | {:.0} ({:.0}–{:.0}) | {:.0}{mark} | {:.0}{mark} | {:.1}{mark} | {:.1} |",
                load.clients,
                figures.side,
                figures.tokens_per_s,
                figures.slowest_round,
                figures.fastest_round,
                figures.first_token_p50_ms,
                figures.first_token_p95_ms,
                figures.inter_token_p95_ms,
                figures.tokens_per_reply,
            );
        }
    }
    if loads.iter().any(|load| load.figures.iter().any(|figures| !figures.streamed)) {
        let _ = writeln!(
            text,
            "\n¹ This server did not stream: the first token's time is that of a reply of one token, asked by as many clients at \
             once, and the time between tokens is the rest of a whole reply's, spread evenly."
        );
    }
    let _ = writeln!(text);
}

fn write_memory(text: &mut String, memory: &[Memory]) {
    let _ = writeln!(text, "### Memory\n\n| Server | Instructions | Most ever held, MB |\n|---|---|---|");
    for Memory { isa, side, peak_mb } in memory {
        let isa = match isa {
            Isa::Best => "best",
            Isa::Avx2 => "AVX2",
        };
        let _ = writeln!(text, "| {side} | {isa} | {peak_mb} |");
    }
    let _ = writeln!(text);
}

fn write_samples(text: &mut String, samples: &[(Isa, Scenario, Side, Reply)]) {
    let _ = writeln!(
        text,
        "### What they said\n\nThe first words of one reply each, to a prompt of the kind named.\n"
    );
    for (isa, scenario, side, reply) in samples {
        let words: Vec<&str> = reply.text.split_whitespace().take(24).collect();
        let _ = writeln!(text, "- {}, {side}: “{} …”", title(*isa, *scenario), words.join(" "));
    }
}
