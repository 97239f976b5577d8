//! Rate-limit headers on every reply to a valid key, in two formats: the IETF draft
//! (draft-ietf-httpapi-ratelimit-headers-10) and the one that OpenAI's clients know. They are about the account; what is left of a
//! key's own limits is in `GET /v1/key`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use chancery_domain::{RateLimitStatus, RateLimits, WINDOW, ceil_seconds};
use chancery_metering::Caller;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const CURRENT: HeaderName = HeaderName::from_static("ratelimit");

/// Carries the authenticated caller from the extractors to the response. The last authentication wins.
#[derive(Clone, Default)]
pub(crate) struct CallerSlot(Arc<Mutex<Option<Caller>>>);

impl CallerSlot {
    pub(crate) fn set(&self, caller: Caller) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(caller);
    }

    pub(crate) fn get(&self) -> Option<Caller> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The limits are always known. The status is missing while the rate-limit store is unreachable.
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
    headers.insert("x-ratelimit-limit-requests", requests_per_min.into());
    headers.insert("x-ratelimit-limit-tokens", tokens_per_min.into());
    let Some(rate_limit_status) = rate_limit_status else { return };
    let (used, remaining) = (rate_limit_status.used, rate_limit_status.remaining());
    // With nothing used, the reset time is 0.
    let until = |used: u64, wait: Duration| if used == 0 { 0 } else { ceil_seconds(wait) };
    let [requests_next_s, requests_all_s] =
        [rate_limit_status.next_expiry, rate_limit_status.full_reset].map(|wait| until(used.requests, wait));
    let [tokens_next_s, tokens_all_s] =
        [rate_limit_status.next_expiry, rate_limit_status.full_reset].map(|wait| until(used.tokens, wait));
    insert(
        headers,
        CURRENT,
        format_args!(
            r#""requests";r={};t={requests_next_s}, "tokens";r={};t={tokens_next_s}"#,
            remaining.requests, remaining.tokens
        ),
    );
    headers.insert("x-ratelimit-remaining-requests", remaining.requests.into());
    headers.insert("x-ratelimit-remaining-tokens", remaining.tokens.into());
    insert(headers, HeaderName::from_static("x-ratelimit-reset-requests"), minutes_header(requests_all_s));
    insert(headers, HeaderName::from_static("x-ratelimit-reset-tokens"), minutes_header(tokens_all_s));
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: impl Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(name, value);
    }
}

/// Formats durations like Go, as OpenAI does: `7s`, `1m0s`.
fn minutes_header(seconds: u32) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::LimitUsage;

    const LIMITS: RateLimits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };

    fn headers(rate_limit_status: Option<RateLimitStatus>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        add_headers(&mut headers, LIMITS, rate_limit_status);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn both_header_families_report_limit_remaining_and_reset() {
        let rate_limit_status = RateLimitStatus {
            limits: LIMITS,
            used: LimitUsage { requests: 2, tokens: 1_234 },
            next_expiry: Duration::from_millis(12_001),
            full_reset: WINDOW,
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
    fn unused_account_resets_in_0s_and_exceeded_account_has_0_remaining() {
        let unused = RateLimitStatus {
            limits: LIMITS,
            used: LimitUsage::default(),
            next_expiry: Duration::ZERO,
            full_reset: Duration::ZERO,
        };
        let sent = headers(Some(unused));
        assert!(
            sent.contains(&r#"ratelimit: "requests";r=60;t=0, "tokens";r=60000;t=0"#.to_owned()),
            "{sent:?}"
        );
        assert!(sent.contains(&"x-ratelimit-reset-tokens: 0s".to_owned()), "{sent:?}");
        let exceeded =
            RateLimitStatus { used: LimitUsage { requests: 61, tokens: 0 }, full_reset: WINDOW, ..unused };
        let sent = headers(Some(exceeded));
        assert!(sent.contains(&"x-ratelimit-remaining-requests: 0".to_owned()), "{sent:?}");
        assert!(sent.contains(&"x-ratelimit-reset-tokens: 0s".to_owned()), "{sent:?}");
    }

    #[test]
    fn limit_headers_are_sent_even_if_usage_is_unknown() {
        assert_eq!(headers(None).len(), 3);
    }
}
