//! A lower bound, from the client's view, on what was admitted within any 60 seconds. A request was admitted between being
//! sent and being answered, so it certainly counts in every window that contains both.

use super::clients::ReceivedReply;
use chancery_domain::WINDOW;
use std::time::Instant;

pub struct Admitted {
    pub not_before: Instant,
    pub not_after: Instant,
    pub tokens: u64,
}

impl From<&ReceivedReply> for Admitted {
    fn from(seen: &ReceivedReply) -> Self {
        let tokens = u64::from(seen.content.input_tokens) + u64::from(seen.content.output_tokens);
        Self { not_before: seen.sent_at, not_after: seen.received_at, tokens }
    }
}

/// The maximum requests and tokens in any 60 seconds.
pub fn fullest(admitted: &[Admitted]) -> (u64, u64) {
    let (mut max_requests, mut max_tokens) = (0, 0);
    for first in admitted {
        let (from, to) = (first.not_before, first.not_before + WINDOW);
        let within = admitted.iter().filter(|other| other.not_before >= from && other.not_after < to);
        let (requests, tokens) =
            within.fold((0, 0), |(requests, tokens), one| (requests + 1, tokens + one.tokens));
        max_requests = max_requests.max(requests);
        max_tokens = max_tokens.max(tokens);
    }
    (max_requests, max_tokens)
}

#[test]
fn overfull_window_is_found_at_any_start() {
    use chancery_domain::{Clock, SystemClock};
    use std::time::Duration;
    let start = SystemClock.monotonic();
    let at = |seconds: u64| {
        let moment = start + Duration::from_secs(seconds);
        Admitted { not_before: moment, not_after: moment, tokens: seconds }
    };
    assert_eq!(fullest(&[]), (0, 0));
    assert_eq!(fullest(&[at(0), at(59), at(60), at(118), at(119)]), (3, 297));
}
