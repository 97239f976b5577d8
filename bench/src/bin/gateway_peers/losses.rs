//! Where a peer is ahead of Chancery.

use crate::cells::{Cell, Round};
use crate::side::Side;
use chancery_bench::summary::number;

struct Figure {
    name: &'static str,
    value: fn(&Round) -> f64,
    is_better_when_larger: bool,
}

const FIGURES: [Figure; 4] = [
    Figure { name: "requests/s", value: |round| round.requests_per_s, is_better_when_larger: true },
    Figure { name: "median µs", value: |round| round.median_us, is_better_when_larger: false },
    Figure { name: "99 % µs", value: |round| round.p99_us, is_better_when_larger: false },
    Figure { name: "CPU µs", value: |round| round.server_cpu_us, is_better_when_larger: false },
];

/// One line for every figure in which a peer is ahead of Chancery with SQLite. A side with errors is ahead in nothing.
pub fn of(cells: &[Cell]) -> Vec<String> {
    let mut lines = Vec::new();
    for ours in cells.iter().filter(|cell| cell.side == Side::Chancery) {
        let same_load = |cell: &&Cell| (cell.mode, cell.connections) == (ours.mode, ours.connections);
        let peers = cells.iter().filter(same_load).filter(|cell| cell.side.is_peer() && cell.errors() == 0);
        for peer in peers {
            for Figure { name, value, is_better_when_larger } in &FIGURES {
                let (own, other) = (ours.median(value), peer.median(value));
                let is_ahead = if *is_better_when_larger { other > own } else { other < own };
                if is_ahead {
                    let (mode, connections, side) = (ours.mode, ours.connections, peer.side);
                    lines.push(format!(
                        "{mode}, {connections} connections, {name}: {side} {}, Chancery {}",
                        number(other),
                        number(own)
                    ));
                }
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::Mode;

    fn cell(side: Side, requests_per_s: f64, latency_us: f64, errors: usize) -> Cell {
        let round = Round {
            requests_per_s,
            median_us: latency_us,
            p99_us: latency_us,
            server_cpu_us: latency_us,
            errors,
            ..Round::default()
        };
        Cell { rounds: vec![round], ..Cell::new(side, Mode::Whole, 1) }
    }

    #[test]
    fn each_figure_in_which_a_peer_is_ahead_is_listed() {
        let ours = || cell(Side::Chancery, 2_000.0, 500.0, 0);
        let lines = of(&[ours(), cell(Side::Smg, 3_000.0, 600.0, 0)]);
        assert_eq!(lines, ["whole replies, 1 connections, requests/s: smg 3,000, Chancery 2,000"]);
        assert_eq!(of(&[ours(), cell(Side::Smg, 1_000.0, 400.0, 0)]).len(), 3);
    }

    #[test]
    fn peers_with_errors_and_the_floor_are_ahead_in_nothing() {
        let ours = cell(Side::Chancery, 2_000.0, 500.0, 0);
        let others = [cell(Side::Portkey, 9_000.0, 1.0, 7), cell(Side::Nginx, 9_000.0, 1.0, 0)];
        assert!(of(&[ours].into_iter().chain(others).collect::<Vec<_>>()).is_empty());
    }
}
