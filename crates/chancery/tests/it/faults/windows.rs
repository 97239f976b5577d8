//! How much was admitted within any 60 seconds, as far as a client can know it for certain: a request was admitted between
//! being sent and being answered, so it surely counts in every window that holds both.

use super::clients::Seen;
use chancery_domain::WINDOW;
use std::time::Instant;

pub struct Admitted {
    pub not_before: Instant,
    pub not_after: Instant,
    pub tokens: u64,
}

impl From<&Seen> for Admitted {
    fn from(seen: &Seen) -> Self {
        let tokens = u64::from(seen.answer.input_tokens) + u64::from(seen.answer.output_tokens);
        Self { not_before: seen.sent_at, not_after: seen.received_at, tokens }
    }
}

/// The most requests, and the most tokens, in any 60 seconds.
pub fn fullest(admitted: &[Admitted]) -> (u64, u64) {
    let (mut most_requests, mut most_tokens) = (0, 0);
    for first in admitted {
        let (from, to) = (first.not_before, first.not_before + WINDOW);
        let within = admitted.iter().filter(|other| other.not_before >= from && other.not_after < to);
        let (requests, tokens) =
            within.fold((0, 0), |(requests, tokens), one| (requests + 1, tokens + one.tokens));
        most_requests = most_requests.max(requests);
        most_tokens = most_tokens.max(tokens);
    }
    (most_requests, most_tokens)
}

#[test]
fn a_window_that_is_too_full_is_found_wherever_it_begins() {
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
