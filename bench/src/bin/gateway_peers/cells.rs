//! One cell of the tables: a server, a mode and a number of connections, in several rounds.

use crate::load::{self, Load};
use crate::servers::{self, Server, Upstream};
use crate::side::{Mode, Side};
use chancery_bench::summary::{Spread, number, percentile, us};
use chancery_bench::watch::us_each;
use chancery_bench::{Outcome, cpu};
use std::time::Duration;

/// Unmeasured, before every round: connections open, pools fill, caches warm up.
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Cell {
    pub side: Side,
    pub mode: Mode,
    pub connections: usize,
    pub rounds: Vec<Round>,
}

/// CPU times are microseconds for each successful request.
#[derive(Clone, Debug, Default)]
pub struct Round {
    pub requests_per_s: f64,
    pub median_us: f64,
    pub p99_us: f64,
    /// Of the gateway's processes. 0 without a gateway.
    pub server_cpu_us: f64,
    /// Of PostgreSQL and Redis, for the side that uses them.
    pub databases_cpu_us: f64,
    pub upstream_cpu_us: f64,
    pub generator_cpu_us: f64,
    pub errors: usize,
    pub first_error: Option<String>,
}

/// CPU times so far.
#[derive(Clone, Copy, Debug)]
struct CpuTimes {
    server: Duration,
    databases: Duration,
    upstream: Duration,
    generator: Duration,
}

impl CpuTimes {
    fn read(server: &Server, upstream: &Upstream) -> Outcome<Self> {
        let uses_databases = server.side() == Side::Cluster;
        Ok(Self {
            server: server.cpu_time()?,
            databases: if uses_databases { cpu::of_programs(servers::DATABASES) } else { Duration::ZERO },
            upstream: upstream.cpu_time()?,
            generator: cpu::of_this_process(),
        })
    }
}

pub async fn measure(
    server: &Server,
    upstream: &Upstream,
    mode: Mode,
    connections: usize,
    measured: Duration,
) -> Outcome<Round> {
    let target = server.target(mode);
    load::run(target, mode, connections, WARM_UP).await?;
    let before = CpuTimes::read(server, upstream)?;
    let load = load::run(target, mode, connections, measured).await?;
    let after = CpuTimes::read(server, upstream)?;
    Ok(Round::of(load, before, after))
}

impl Round {
    fn of(load: Load, before: CpuTimes, after: CpuTimes) -> Self {
        let each = |time: fn(&CpuTimes) -> Duration| {
            us_each(time(&after).saturating_sub(time(&before)), load.latencies.len())
        };
        Self {
            requests_per_s: load.latencies.len() as f64 / load.elapsed.as_secs_f64(),
            median_us: us(percentile(&load.latencies, 50).unwrap_or_default()),
            p99_us: us(percentile(&load.latencies, 99).unwrap_or_default()),
            server_cpu_us: each(|times| times.server),
            databases_cpu_us: each(|times| times.databases),
            upstream_cpu_us: each(|times| times.upstream),
            generator_cpu_us: each(|times| times.generator),
            errors: load.errors,
            first_error: load.first_error,
        }
    }
}

impl Cell {
    pub fn new(side: Side, mode: Mode, connections: usize) -> Self {
        Self { side, mode, connections, rounds: Vec::new() }
    }

    pub fn spread(&self, value: impl Fn(&Round) -> f64) -> Spread {
        let none = Spread { median: 0.0, min: 0.0, max: 0.0 };
        Spread::of(self.rounds.iter().map(value)).unwrap_or(none)
    }

    pub fn median(&self, value: impl Fn(&Round) -> f64) -> f64 {
        self.spread(value).median
    }

    pub fn errors(&self) -> usize {
        self.rounds.iter().map(|round| round.errors).sum()
    }

    pub fn one_line(&self) -> String {
        let errors = match self.rounds.iter().find_map(|round| round.first_error.as_ref()) {
            Some(error) => format!(", {} ERRORS, such as: {error}", self.errors()),
            None => String::new(),
        };
        format!(
            "{}, {} connections, {}: {} requests/s, median {} µs, CPU {} µs{errors}",
            self.mode,
            self.connections,
            self.side,
            number(self.median(|round| round.requests_per_s)),
            number(self.median(|round| round.median_us)),
            number(self.median(|round| round.server_cpu_us)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_divided_by_successful_requests() {
        let ms = Duration::from_millis;
        let zero = Duration::ZERO;
        let load = Load {
            latencies: vec![ms(1), ms(2), ms(3), ms(9)],
            elapsed: ms(500),
            errors: 2,
            first_error: Some("broken".to_owned()),
        };
        let before = CpuTimes { server: ms(10), databases: zero, upstream: zero, generator: ms(1) };
        let after = CpuTimes { server: ms(30), databases: ms(4), upstream: ms(8), generator: ms(2) };
        let round = Round::of(load, before, after);
        let figures = [
            round.requests_per_s,
            round.median_us,
            round.p99_us,
            round.server_cpu_us,
            round.databases_cpu_us,
            round.upstream_cpu_us,
            round.generator_cpu_us,
        ];
        let rounded = figures.map(|figure| figure.round() as u64);
        assert_eq!(rounded, [8, 2_000, 9_000, 5_000, 1_000, 2_000, 250]);
        assert_eq!(round.errors, 2);
    }
}
