//! The figures as Markdown, and their chart.

use crate::cells::{Cell, Round};
use crate::flush::Flush;
use crate::losses;
use crate::side::{Mode, Side};
use chancery_bench::bar_chart::{Bar, Chart, Group, Panel};
use chancery_bench::instant_upstream::TOKENS;
use chancery_bench::machine::Machine;
use chancery_bench::summary::{Spread, number};
use std::fmt::Write as _;

/// All measurements.
#[derive(Debug, Default)]
pub struct Report {
    pub cells: Vec<Cell>,
    pub flushes: Vec<Flush>,
    /// The largest share of the machine that other programs used in any round.
    pub busy_with_others: f64,
    pub rounds: usize,
    pub seconds: u64,
}

pub fn section(machine: &Machine, versions: &[String], command: &str, report: &Report) -> String {
    let mut text = String::new();
    let Machine { day, cpu, kernel, revision, .. } = machine;
    let versions: String = versions.iter().map(|version| format!("; {version}")).collect();
    let _ = writeln!(
        text,
        "![Requests per second and CPU time of each gateway](results/gateway.svg)\n\n\
         {day}. {cpu}, Linux {kernel}. Chancery at {revision}{versions}. Command: `{command}`.\n\
         {} rounds of {} s for each cell, interleaved: medians, and the range of the rounds in parentheses. Replies of {TOKENS} \
         tokens from an upstream that answers at once. The load generator and the upstream share the cores with the gateway; their \
         CPU time is counted apart. In the noisiest round, other programs used {:.1} % of the machine.\n",
        report.rounds,
        report.seconds,
        report.busy_with_others * 100.0,
    );
    write_flush(&mut text, report);
    write_losses(&mut text, &report.cells);
    for cells in report.cells.chunk_by(|a, b| a.mode == b.mode) {
        write_cells(&mut text, cells);
    }
    write_errors(&mut text, &report.cells);
    text
}

/// With one connection, every request waits for one flush of the ledger.
fn write_flush(text: &mut String, report: &Report) {
    let Some(flush) = Spread::of(report.flushes.iter().map(|flush| flush.median_us)) else { return };
    let _ = write!(
        text,
        "The disk's own flush of a small write, in the same run: {} µs. One connection to Chancery, median minus that flush:",
        flush.shown()
    );
    for cell in report.cells.iter().filter(|cell| cell.connections == 1 && cell.side == Side::Chancery) {
        let median_us = cell.median(|round| round.median_us);
        let _ = write!(
            text,
            " {} {} − {} = **{} µs**;",
            cell.mode,
            number(median_us),
            number(flush.median),
            number(median_us - flush.median)
        );
    }
    text.truncate(text.trim_end_matches(';').len());
    text.push_str(".\n\n");
}

fn write_losses(text: &mut String, cells: &[Cell]) {
    let lines = losses::of(cells);
    if lines.is_empty() {
        text.push_str("No peer is ahead of Chancery with SQLite in any figure of these tables. ");
    } else {
        text.push_str("**Where a peer is ahead of Chancery with SQLite:**\n\n");
        for line in lines {
            let _ = writeln!(text, "- {line}");
        }
        text.push('\n');
    }
    text.push_str(
        "nginx only forwards; it is the floor and not counted as a peer. Cells in which a peer's requests failed are not compared.\n\n",
    );
}

fn write_cells(text: &mut String, cells: &[Cell]) {
    let mut title = cells[0].mode.to_string();
    title[..1].make_ascii_uppercase();
    let _ = writeln!(
        text,
        "### {title}\n\n\
         | Connections | Server | Requests/s (rounds) | Median µs (rounds) | 99 % µs | CPU µs per request | PostgreSQL and Redis CPU µs \
         | Upstream CPU µs | Load generator CPU µs | Errors |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for cell in cells {
        let shown = |value: fn(&Round) -> f64| number(cell.median(value));
        let server_cpu =
            if cell.side == Side::Direct { String::new() } else { shown(|round| round.server_cpu_us) };
        let databases =
            if cell.side == Side::Cluster { shown(|round| round.databases_cpu_us) } else { String::new() };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {server_cpu} | {databases} | {} | {} | {} |",
            cell.connections,
            full_name(cell.side),
            cell.spread(|round| round.requests_per_s).shown(),
            cell.spread(|round| round.median_us).shown(),
            shown(|round| round.p99_us),
            shown(|round| round.upstream_cpu_us),
            shown(|round| round.generator_cpu_us),
            cell.errors(),
        );
    }
    text.push('\n');
}

fn write_errors(text: &mut String, cells: &[Cell]) {
    for cell in cells.iter().filter(|cell| cell.errors() > 0) {
        let error = cell.rounds.iter().find_map(|round| round.first_error.as_ref());
        let error = error.map_or("unknown", String::as_str).replace(['\n', '`'], " ");
        let _ = writeln!(
            text,
            "- {} failed {} times ({}, {} connections), first with `{error}`. The cell's figures cover its successful requests only.",
            full_name(cell.side),
            cell.errors(),
            cell.mode,
            cell.connections
        );
    }
}

fn full_name(side: Side) -> String {
    match side {
        Side::Chancery => "Chancery (SQLite)".to_owned(),
        Side::Cluster => "Chancery (PostgreSQL and Redis)".to_owned(),
        other => other.to_string(),
    }
}

pub fn chart(report: &Report) -> Chart {
    let measured = |side: &Side| report.cells.iter().any(|cell| cell.side == *side);
    let sides: Vec<Side> = Side::ALL.into_iter().filter(measured).collect();
    let mut panels = Vec::new();
    for mode in Mode::ALL {
        let cells: Vec<&Cell> = report.cells.iter().filter(|cell| cell.mode == mode).collect();
        if cells.is_empty() {
            continue;
        }
        let rate = |round: &Round| round.requests_per_s;
        panels.push(panel(format!("{mode}: requests per second, by connections"), &cells, &sides, rate));
        let gateways: Vec<&Cell> = cells.into_iter().filter(|cell| cell.side != Side::Direct).collect();
        let cpu = |round: &Round| round.server_cpu_us;
        panels.push(panel(format!("{mode}: CPU µs per request, by connections"), &gateways, &sides, cpu));
    }
    Chart {
        title: "Gateways in front of an upstream that answers at once".to_owned(),
        series: sides.iter().map(Side::to_string).collect(),
        panels,
    }
}

fn panel(title: String, cells: &[&Cell], sides: &[Side], value: impl Fn(&Round) -> f64) -> Panel {
    let groups = cells.chunk_by(|a, b| a.connections == b.connections).map(|cells| Group {
        label: cells[0].connections.to_string(),
        bars: cells
            .iter()
            .filter_map(|cell| {
                let series = sides.iter().position(|side| *side == cell.side)?;
                Some(Bar { series, value: cell.median(&value) })
            })
            .collect(),
    });
    Panel { title, groups: groups.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(side: Side, mode: Mode, connections: usize, requests_per_s: f64, errors: usize) -> Cell {
        let first_error = (errors > 0).then(|| "status 500:\nno".to_owned());
        let round = Round { requests_per_s, median_us: 450.0, errors, first_error, ..Round::default() };
        Cell { rounds: vec![round], ..Cell::new(side, mode, connections) }
    }

    fn report() -> Report {
        Report {
            cells: vec![
                cell(Side::Chancery, Mode::Whole, 1, 2_000.0, 0),
                cell(Side::Smg, Mode::Whole, 1, 1_000.0, 0),
                cell(Side::Portkey, Mode::Whole, 1, 500.0, 3),
                cell(Side::Chancery, Mode::Streamed, 8, 9_000.0, 0),
            ],
            flushes: vec![Flush { median_us: 150.0 }],
            rounds: 1,
            seconds: 5,
            ..Report::default()
        }
    }

    fn text() -> String {
        let machine = Machine {
            day: "2026-11-17".to_owned(),
            cpu: "2 cores".to_owned(),
            kernel: "6.1".to_owned(),
            revision: "abc".to_owned(),
            generator_share: 0.5,
        };
        section(&machine, &["smg 1".to_owned()], "make bench-gateway", &report())
    }

    #[test]
    fn section_names_versions_and_command() {
        let text = text();
        assert!(text.contains("Chancery at abc; smg 1. Command: `make bench-gateway`."), "{text}");
    }

    #[test]
    fn disk_flush_is_subtracted_from_the_median_of_one_connection() {
        let text = text();
        assert!(text.contains("whole replies 450 − 150 = **300 µs**.\n"), "{text}");
    }

    #[test]
    fn errors_are_shown_in_their_cell_and_explained() {
        let text = text();
        assert!(text.contains("| 1 | Portkey | 500 (500–500) |"), "{text}");
        assert!(text.contains(
            "- Portkey failed 3 times (whole replies, 1 connections), first with `status 500: no`"
        ));
    }

    #[test]
    fn chart_has_a_panel_for_each_mode_and_figure_and_a_series_for_each_side() {
        let chart = chart(&report());
        assert_eq!(chart.panels.len(), 4);
        assert_eq!(chart.series, ["Chancery", "smg", "Portkey"]);
        let bars: usize = chart.panels[0].groups.iter().map(|group| group.bars.len()).sum();
        assert_eq!(bars, 3);
    }
}
