//! Where the caller's account stands, told on every reply to a valid key. Two families of headers say it: the IETF's
//! (draft-ietf-httpapi-ratelimit-headers-10) and the one that OpenAI's clients know.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use chancery_domain::{RateLimitStatus, RateLimits, WINDOW, whole_seconds};
use chancery_metering::Caller;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const CURRENT: HeaderName = HeaderName::from_static("ratelimit");

/// Goes with the request: whoever authenticates it writes down for whom, the last time counts, and whoever sends the
/// reply reads it.
#[derive(Clone, Default)]
pub(crate) struct KnownCaller(Arc<Mutex<Option<Caller>>>);

impl KnownCaller {
    pub(crate) fn is(&self, caller: Caller) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(caller);
    }

    pub(crate) fn get(&self) -> Option<Caller> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits are always known; where the account stands is not while the limits' store cannot be reached.
pub(crate) fn add_headers(
    headers: &mut HeaderMap,
    limits: RateLimits,
    rate_limit_status: Option<RateLimitStatus>,
) {
    let RateLimits { requests_per_min, tokens_per_min } = limits;
    let window_s = WINDOW.as_secs();
    insert(
        headers,
        POLICY,
        format_args!(
            r#""requests";q={requests_per_min};w={window_s}, "tokens";q={tokens_per_min};qu="tokens";w={window_s}"#
        ),
    );
    insert(headers, HeaderName::from_static("x-ratelimit-limit-requests"), requests_per_min);
    insert(headers, HeaderName::from_static("x-ratelimit-limit-tokens"), tokens_per_min);
    let Some(rate_limit_status) = rate_limit_status else { return };
    let (used, remaining) = (rate_limit_status.used, rate_limit_status.remaining());
    // Where nothing is used, nothing is waited for.
    let until = |used: u64, wait: Duration| if used == 0 { 0 } else { whole_seconds(wait) };
    let [requests_next_s, requests_all_s] =
        [rate_limit_status.next_leaves, rate_limit_status.all_left].map(|wait| until(used.requests, wait));
    let [tokens_next_s, tokens_all_s] =
        [rate_limit_status.next_leaves, rate_limit_status.all_left].map(|wait| until(used.tokens, wait));
    insert(
        headers,
        CURRENT,
        format_args!(
            r#""requests";r={};t={requests_next_s}, "tokens";r={};t={tokens_next_s}"#,
            remaining.requests, remaining.tokens
        ),
    );
    insert(headers, HeaderName::from_static("x-ratelimit-remaining-requests"), remaining.requests);
    insert(headers, HeaderName::from_static("x-ratelimit-remaining-tokens"), remaining.tokens);
    insert(headers, HeaderName::from_static("x-ratelimit-reset-requests"), in_minutes(requests_all_s));
    insert(headers, HeaderName::from_static("x-ratelimit-reset-tokens"), in_minutes(tokens_all_s));
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: impl Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(name, value);
    }
}

/// As the Go language writes durations, and so OpenAI: `7s`, `1m0s`.
fn in_minutes(seconds: u32) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::Amount;

    const LIMITS: RateLimits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };

    fn headers(rate_limit_status: Option<RateLimitStatus>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        add_headers(&mut headers, LIMITS, rate_limit_status);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn both_families_tell_limit_remainder_and_when_more_comes() {
        let rate_limit_status = RateLimitStatus {
            limits: LIMITS,
            used: Amount { requests: 2, tokens: 1_234 },
            next_leaves: Duration::from_millis(12_001),
            all_left: WINDOW,
        };
        assert_eq!(
            headers(Some(rate_limit_status)),
            [
                r#"ratelimit-policy: "requests";q=60;w=60, "tokens";q=60000;qu="tokens";w=60"#,
                "x-ratelimit-limit-requests: 60",
                "x-ratelimit-limit-tokens: 60000",
                r#"ratelimit: "requests";r=58;t=13, "tokens";r=58766;t=13"#,
                "x-ratelimit-remaining-requests: 58",
                "x-ratelimit-remaining-tokens: 58766",
                "x-ratelimit-reset-requests: 1m0s",
                "x-ratelimit-reset-tokens: 1m0s",
            ]
        );
    }

    #[test]
    fn an_account_that_has_used_nothing_waits_for_nothing_and_one_above_its_limit_has_nothing_left() {
        let nothing = RateLimitStatus {
            limits: LIMITS,
            used: Amount::default(),
            next_leaves: Duration::ZERO,
            all_left: Duration::ZERO,
        };
        let told = headers(Some(nothing));
        assert!(
            told.contains(&r#"ratelimit: "requests";r=60;t=0, "tokens";r=60000;t=0"#.to_owned()),
            "{told:?}"
        );
        assert!(told.contains(&"x-ratelimit-reset-tokens: 0s".to_owned()), "{told:?}");
        let above = RateLimitStatus { used: Amount { requests: 61, tokens: 0 }, all_left: WINDOW, ..nothing };
        let told = headers(Some(above));
        assert!(told.contains(&"x-ratelimit-remaining-requests: 0".to_owned()), "{told:?}");
        assert!(told.contains(&"x-ratelimit-reset-tokens: 0s".to_owned()), "{told:?}");
    }

    #[test]
    fn the_limits_are_told_even_where_nobody_knows_what_is_used() {
        assert_eq!(headers(None).len(), 3);
    }
}
