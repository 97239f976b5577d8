//! Aggregates the rounds of one side.

use crate::crowd::Round;
use crate::dialect::Reply;
use crate::server::Side;
use chancery_bench::summary::percentile;
use std::time::Duration;

/// One side under one load.
#[derive(Debug)]
pub struct Figures {
    pub side: Side,
    /// Generated tokens per second, including prompt processing: over all rounds, and of the slowest and fastest round.
    pub tokens_per_s: f64,
    pub slowest_round: f64,
    pub fastest_round: f64,
    pub tokens_per_reply: f64,
    pub first_token_p50_ms: f64,
    pub first_token_p95_ms: f64,
    pub inter_token_p95_ms: f64,
    /// Whether the two times were measured in a stream, or derived from whole replies.
    pub streamed: bool,
}

impl Figures {
    pub fn of(side: Side, rounds: &[Round]) -> Option<Self> {
        let replies = || rounds.iter().flat_map(|round| &round.replies);
        let output_tokens =
            |replies: &[Reply]| replies.iter().map(|reply| reply.output_tokens).sum::<u64>() as f64;
        let rates: Vec<f64> =
            rounds.iter().map(|round| output_tokens(&round.replies) / round.seconds).collect();
        let tokens: f64 = rounds.iter().map(|round| output_tokens(&round.replies)).sum();
        let seconds: f64 = rounds.iter().map(|round| round.seconds).sum();
        let streamed = replies().all(|reply| reply.streamed.is_some());
        let (first, between) = if streamed {
            let seen = || replies().filter_map(|reply| reply.streamed.as_ref());
            let gaps = seen().flat_map(|streamed| streamed.gaps.iter().copied()).collect();
            (sorted(seen().map(|streamed| streamed.first).collect()), sorted(gaps))
        } else {
            let first = sorted(rounds.iter().flat_map(|round| round.one_token.iter().copied()).collect());
            let typical_first = percentile(&first, 50)?;
            let mean_gap = |reply: &Reply| {
                let gaps = u32::try_from(reply.output_tokens).unwrap_or(u32::MAX).saturating_sub(1).max(1);
                reply.total.saturating_sub(typical_first) / gaps
            };
            (first, sorted(replies().map(mean_gap).collect()))
        };
        Some(Self {
            side,
            tokens_per_s: tokens / seconds,
            slowest_round: rates.iter().copied().fold(f64::INFINITY, f64::min),
            fastest_round: rates.iter().copied().fold(0.0, f64::max),
            tokens_per_reply: tokens / replies().count() as f64,
            first_token_p50_ms: ms(percentile(&first, 50)?),
            first_token_p95_ms: ms(percentile(&first, 95)?),
            inter_token_p95_ms: ms(percentile(&between, 95)?),
            streamed,
        })
    }
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort_unstable();
    times
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
