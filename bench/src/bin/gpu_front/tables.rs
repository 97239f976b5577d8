//! The figures as Markdown, and their chart.

use crate::clients::Round;
use chancery_bench::bar_chart::{Bar, Chart, Group, Panel};
use chancery_bench::machine::Machine;
use chancery_bench::summary::{Spread, number, percentile};
use std::fmt::Write as _;

const DIRECT_STREAMED: usize = 0;
const OWN_STREAMED: usize = 1;
const DIRECT_WHOLE: usize = 2;
const OWN_WHOLE: usize = 3;

#[derive(Debug, Default)]
pub struct Report {
    pub loads: Vec<Load>,
    /// Cores that Chancery used while requests ran through it, on average.
    pub chancery_cores: f64,
    pub busy_with_others: f64,
}

/// All rounds of one number of clients.
#[derive(Debug)]
pub struct Load {
    pub clients: usize,
    /// Direct and through Chancery, streamed and then whole.
    pub paths: [Vec<Round>; 4],
}

impl Report {
    /// Time in which requests ran through Chancery.
    pub fn own_seconds(&self) -> f64 {
        let own = |load: &Load| [OWN_STREAMED, OWN_WHOLE].map(|path| total_seconds(&load.paths[path]));
        self.loads.iter().flat_map(own).sum()
    }
}

fn total_seconds(rounds: &[Round]) -> f64 {
    rounds.iter().map(|round| round.seconds).sum()
}

impl Load {
    fn rate(&self, path: usize) -> Spread {
        let none = Spread { median: 0.0, min: 0.0, max: 0.0 };
        Spread::of(self.paths[path].iter().map(Round::tokens_per_s)).unwrap_or(none)
    }

    fn share(&self, own: usize, direct: usize) -> f64 {
        100.0 * self.rate(own).median / self.rate(direct).median.max(f64::EPSILON)
    }

    fn streamed_share(&self) -> f64 {
        self.share(OWN_STREAMED, DIRECT_STREAMED)
    }

    fn whole_share(&self) -> f64 {
        self.share(OWN_WHOLE, DIRECT_WHOLE)
    }

    fn first_text_ms(&self, path: usize) -> f64 {
        let medians = self.paths[path].iter().filter_map(|round| percentile(&round.first_text, 50));
        Spread::of(medians.map(|time| time.as_secs_f64() * 1e3)).map_or(0.0, |spread| spread.median)
    }

    pub fn one_line(&self) -> String {
        format!(
            "{} clients: streamed {:.1} % of direct, whole {:.1} % of direct",
            self.clients,
            self.streamed_share(),
            self.whole_share()
        )
    }
}

pub fn section(machine: &Machine, description: &str, command: &str, report: &Report) -> String {
    let Machine { day, cpu, kernel, revision, generator_share } = machine;
    let rounds = report.loads.first().map_or(0, |load| load.paths[DIRECT_STREAMED].len());
    let mut text = String::new();
    let _ = writeln!(
        text,
        "![Tokens per second directly and through Chancery](results/gpu.svg)\n\n\
         {day}. {cpu}, Linux {kernel}. Chancery at {revision}. Server: {description}. Command: `{command}`.\n\
         {rounds} rounds, interleaved: medians, and the range of the rounds in parentheses. Chancery used {:.2} cores on average, the \
         load generator {:.1} % of one core; the rest of the machine, with the server's own processes, was busy to {:.1} %.\n",
        report.chancery_cores,
        generator_share * 100.0,
        report.busy_with_others * 100.0,
    );
    let _ = writeln!(
        text,
        "| Clients | Streamed: direct tokens/s | through Chancery | share | Whole: direct tokens/s | through Chancery | share | \
         First text p50 ms: direct | through Chancery |\n|---|---|---|---|---|---|---|---|---|"
    );
    for load in &report.loads {
        let _ = writeln!(
            text,
            "| {} | {} | {} | **{:.1} %** | {} | {} | **{:.1} %** | {} | {} |",
            load.clients,
            load.rate(DIRECT_STREAMED).shown(),
            load.rate(OWN_STREAMED).shown(),
            load.streamed_share(),
            load.rate(DIRECT_WHOLE).shown(),
            load.rate(OWN_WHOLE).shown(),
            load.whole_share(),
            number(load.first_text_ms(DIRECT_STREAMED)),
            number(load.first_text_ms(OWN_STREAMED)),
        );
    }
    let behind = behind(&report.loads);
    if behind.is_empty() {
        text.push_str("\nDirect requests are nowhere faster.\n");
    } else {
        let _ = writeln!(text, "\n**Where direct requests are faster:** {}.", behind.join("; "));
    }
    text
}

fn behind(loads: &[Load]) -> Vec<String> {
    let mut lines = Vec::new();
    for load in loads {
        for (kind, share) in [("streamed", load.streamed_share()), ("whole", load.whole_share())] {
            if share < 100.0 {
                lines.push(format!("{} clients, {kind}, by {:.1} %", load.clients, 100.0 - share));
            }
        }
    }
    lines
}

pub fn chart(report: &Report) -> Chart {
    let panel = |title: &str, own: usize, direct: usize| Panel {
        title: title.to_owned(),
        groups: report
            .loads
            .iter()
            .map(|load| Group {
                label: load.clients.to_string(),
                bars: vec![
                    Bar { series: 0, value: load.rate(own).median },
                    Bar { series: 1, value: load.rate(direct).median },
                ],
            })
            .collect(),
    };
    Chart {
        title: "Generated tokens per second, by clients at a time".to_owned(),
        series: vec!["through Chancery".to_owned(), "direct".to_owned()],
        panels: vec![
            panel("streamed replies", OWN_STREAMED, DIRECT_STREAMED),
            panel("whole replies", OWN_WHOLE, DIRECT_WHOLE),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rounds(tokens: [u64; 3]) -> Vec<Round> {
        let first_text = vec![Duration::from_millis(20)];
        tokens
            .map(|output_tokens| Round { output_tokens, seconds: 1.0, first_text: first_text.clone() })
            .to_vec()
    }

    fn load() -> Load {
        let paths =
            [rounds([100, 90, 110]), rounds([99, 98, 200]), rounds([200, 200, 200]), rounds([210, 210, 210])];
        Load { clients: 4, paths }
    }

    #[test]
    fn shares_compare_medians_of_the_same_kind_of_reply() {
        assert_eq!(load().one_line(), "4 clients: streamed 99.0 % of direct, whole 105.0 % of direct");
    }

    #[test]
    fn only_time_through_chancery_counts_for_its_cores() {
        let report = Report { loads: vec![load(), load()], ..Report::default() };
        assert_eq!(report.own_seconds().round() as u64, 12);
    }

    #[test]
    fn loads_in_which_direct_requests_are_faster_are_named() {
        assert_eq!(behind(&[load()]), ["4 clients, streamed, by 1.0 %"]);
    }

    #[test]
    fn chart_has_both_paths_side_by_side() {
        let chart = chart(&Report { loads: vec![load()], ..Report::default() });
        let bars: Vec<f64> = chart.panels[0].groups[0].bars.iter().map(|bar| bar.value.round()).collect();
        assert_eq!(bars.iter().map(|value| *value as u64).collect::<Vec<_>>(), [99, 100]);
        assert_eq!(chart.panels.len(), 2);
    }
}
