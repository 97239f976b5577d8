//! Requests that a limit of the account or the key rejects. The error says whose limit it is, and which.

use super::ApiError;
use axum::http::StatusCode;
use chancery_domain::{LimitScope, Nanos, RateLimits};
use chancery_metering::{Rejection, SpendingCapDetails};

/// The limit that rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReachedLimit {
    pub scope: LimitScope,
    pub name: LimitName,
}

chancery_domain::closed_enum! {
    /// By the name in replies.
    pub(crate) enum LimitName {
        RequestsPerMinute = "requests_per_minute",
        TokensPerMinute = "tokens_per_minute",
        SpendPerMonth = "spend_per_month",
    }
}

impl ApiError {
    pub(super) fn spending_cap_reached(reached: &SpendingCapDetails) -> Self {
        let SpendingCapDetails { scope, cap, spent, reserved, asked, resets_at } = reached;
        let under_way = match *reserved {
            Nanos(0) => String::new(),
            _ => format!(" and {reserved} reserved by running requests"),
        };
        let of_key = match scope {
            LimitScope::Account => "",
            LimitScope::Key => " of this key",
        };
        let reason = format!(
            "spending cap{of_key} reached: this request may cost {asked}; {spent} of the monthly cap of {cap} is spent\
             {under_way}; wait for the reset at {}, or lower `max_output_tokens`",
            resets_at.to_iso()
        );
        Self::new(StatusCode::PAYMENT_REQUIRED, "spending_cap_reached", reason)
            .with_limit(*scope, LimitName::SpendPerMonth)
    }

    pub(super) fn rate_limited(rejection: &Rejection, tokens: u64) -> Self {
        let (scope, exceeded) = (rejection.scope(), rejection.exceeded());
        let RateLimits { requests_per_min, tokens_per_min } = exceeded.status.limits;
        let retry_after_s = rejection.retry_after_s();
        let reached = rate_limit_reached(scope);
        let (name, what) = match exceeded.requests_retry_after >= exceeded.tokens_retry_after {
            true => {
                (LimitName::RequestsPerMinute, format!("{reached}: {requests_per_min} requests per minute"))
            }
            false => (
                LimitName::TokensPerMinute,
                format!(
                    "{reached}: this request may use {tokens} tokens, and {} of {tokens_per_min} tokens per minute are left",
                    exceeded.status.remaining().tokens
                ),
            ),
        };
        let reason = format!("{what}; try again in {retry_after_s} seconds (nothing was billed)");
        let rejected = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", reason)
            .with_limit(scope, name)
            .retry_after_s(retry_after_s);
        // The headers are about the account.
        Self { rate_limit_status: Some(Box::new(rejection.account.status)), ..rejected }
    }

    /// Without a rate-limit status: the headers are about what the account generates, not what it reads.
    pub(super) fn reads_rate_limited(rejection: &Rejection) -> Self {
        let scope = rejection.scope();
        let requests_per_min = rejection.exceeded().status.limits.requests_per_min;
        let retry_after_s = rejection.retry_after_s();
        let reason = format!(
            "{}: {requests_per_min} token counts, replays, and reads of usage, models and keys per minute; \
             try again in {retry_after_s} seconds",
            rate_limit_reached(scope)
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", reason)
            .with_limit(scope, LimitName::RequestsPerMinute)
            .retry_after_s(retry_after_s)
    }

    pub(super) fn exceeds_token_limit(
        input_tokens: u32,
        max_output_tokens: u32,
        scope: LimitScope,
        limit: u32,
    ) -> Self {
        let whose = scope.as_str();
        let error = match limit.checked_sub(input_tokens) {
            Some(available @ 1..) => Self::invalid_value(
                "max_output_tokens",
                format!(
                    "{input_tokens} input tokens plus `max_output_tokens` {max_output_tokens} exceed this {whose}'s \
                     limit of {limit} tokens per minute; set `max_output_tokens` to {available} or less"
                ),
            ),
            _ => Self::invalid_value(
                "input",
                format!(
                    "{input_tokens} input tokens exceed this {whose}'s limit of {limit} tokens per minute (one is needed for \
                     the reply); shorten the input"
                ),
            ),
        };
        error.with_limit(scope, LimitName::TokensPerMinute)
    }
}

fn rate_limit_reached(scope: LimitScope) -> &'static str {
    match scope {
        LimitScope::Account => "rate limit reached",
        LimitScope::Key => "rate limit of this key reached",
    }
}
