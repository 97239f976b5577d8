//! `GET /v1/usage?from&to&by`: what the key's account has used, summed from the ledger. Both days are included, in UTC.

use crate::ApiState;
use crate::caller::AuthenticatedRead;
use crate::error::ApiError;
use crate::openapi::errors::QueryErrors;
use crate::openapi::values::UsageGrouping;
use axum::Json;
use axum::extract::{RawQuery, State};
use chancery_domain::{Day, Nanos};
use chancery_metering::MeterError;
use chancery_store::{DbError, UsageBy, UsageGroup, UsageQuery, UsageSum, UsageTotals};

const PARAMETERS: [&str; 3] = ["from", "to", "by"];

/// What was used, in groups and together.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct UsageReply {
    /// The first day, where one was asked for.
    #[schema(value_type = Option<String>, format = Date, required, examples("2026-11-01"))]
    from: Option<Day>,
    /// The last day, where one was asked for.
    #[schema(value_type = Option<String>, format = Date, required, examples("2026-11-30"))]
    to: Option<Day>,
    /// What each entry of `data` is about.
    #[schema(value_type = UsageGrouping)]
    by: &'static str,
    /// The currency of the costs.
    #[schema(examples("USD"))]
    currency: String,
    /// One entry for each day, model or key that was used.
    data: Vec<UsageEntry>,
    total: Totals,
}

/// What was used on one day, of one model or with one key.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct UsageEntry {
    /// The day, where `by` is `day`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, format = Date, examples("2026-11-15"))]
    day: Option<Day>,
    /// The model, where `by` is `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    model: Option<String>,
    /// The key's public prefix, where `by` is `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    #[serde(flatten)]
    totals: Totals,
}

/// Sums over the ledger's rows.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct Totals {
    /// Requests that were billed.
    #[schema(examples(1))]
    requests: u64,
    /// Tokens counted in.
    #[schema(examples(11))]
    input_tokens: u64,
    /// How many of `input_tokens` were billed at the price of cached input.
    #[schema(examples(0))]
    cached_input_tokens: u64,
    /// Tokens generated.
    #[schema(examples(57))]
    output_tokens: u64,
    /// The exact decimal amount; `cost_nanos` is the same as an integer.
    #[schema(examples("0.0000239"))]
    cost: String,
    /// The cost in thousand-millionths of the currency's unit.
    #[schema(value_type = i64, examples(23900))]
    cost_nanos: Nanos,
}

/// What the key's account has used, summed from the ledger.
///
/// Counts against the account's reads per minute.
#[utoipa::path(
    get,
    path = "/v1/usage",
    operation_id = "usage",
    tag = "Account",
    security(("key" = [])),
    params(
        ("from" = Option<String>, Query, format = Date, description = "The first day (UTC), included; left out, from the beginning. Not after `to`.", example = "2026-11-01"),
        ("to" = Option<String>, Query, format = Date, description = "The last day (UTC), included; left out, up to now.", example = "2026-11-30"),
        ("by" = Option<UsageGrouping>, Query, description = "What to sum by; left out, `day`.")
    ),
    responses((status = 200, description = "The sums.", body = UsageReply), QueryErrors)
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    AuthenticatedRead(caller): AuthenticatedRead,
    RawQuery(query): RawQuery,
) -> Result<Json<UsageReply>, ApiError> {
    let query = parse_query(query.as_deref().unwrap_or_default())?;
    let (from, to, by) = (query.from, query.to, query.by);
    let sums = state.meter.usage(UsageQuery { account: Some(caller.account), ..query }).await;
    let sums = sums.map_err(|error| match error {
        MeterError::Database(DbError::SumTooLarge) => {
            ApiError::invalid_value("from", "total too large; request fewer days")
        }
        error => error.into(),
    })?;
    let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } =
        UsageTotals::of(&sums).map_err(MeterError::from)?;
    let total = Totals {
        requests,
        input_tokens,
        cached_input_tokens,
        output_tokens,
        cost: cost.to_string(),
        cost_nanos: cost,
    };
    Ok(Json(UsageReply {
        from,
        to,
        by: by.as_str(),
        currency: state.currency.to_string(),
        data: sums.into_iter().map(entry).collect(),
        total,
    }))
}

fn parse_query(query: &str) -> Result<UsageQuery, ApiError> {
    let mut found: [Option<&str>; 3] = [None; 3];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(index) = PARAMETERS.iter().position(|known| *known == name) else {
            let shown: String = name.chars().take(60).collect();
            let hint = match chancery_domain::closest_match(name, PARAMETERS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known parameters: {}", PARAMETERS.join(", ")),
            };
            return Err(ApiError::malformed(format!("unknown parameter `{shown}`; {hint}")).with_field(shown));
        };
        if found[index].replace(value).is_some() {
            return Err(
                ApiError::malformed(format!("duplicate parameter `{name}`; send it once")).with_field(name)
            );
        }
    }
    let day = |index: usize| -> Result<Option<Day>, ApiError> {
        let parsed = found[index].map(str::parse::<Day>).transpose();
        parsed.map_err(|error| ApiError::invalid_value(PARAMETERS[index], error.to_string()))
    };
    let (from, to) = (day(0)?, day(1)?);
    if let (Some(from), Some(to)) = (from, to)
        && from > to
    {
        return Err(ApiError::invalid_value(
            "from",
            format!("`from` ({from}) must not be after `to` ({to})"),
        ));
    }
    let requested = found[2].unwrap_or(UsageBy::Day.as_str());
    // A key sees only its own account, so grouping by account is not offered.
    let by = UsageBy::FOR_ONE_ACCOUNT.into_iter().find(|by| by.as_str() == requested);
    let by = by.ok_or_else(|| ApiError::invalid_value("by", "`by` must be day, model or key"))?;
    Ok(UsageQuery { account: None, from, to, by })
}

fn entry(sum: UsageSum) -> UsageEntry {
    let totals = Totals {
        requests: sum.requests,
        input_tokens: sum.input_tokens,
        cached_input_tokens: sum.cached_input_tokens,
        output_tokens: sum.output_tokens,
        cost: sum.cost.to_string(),
        cost_nanos: sum.cost,
    };
    let (mut day, mut model, mut key) = (None, None, None);
    match sum.group {
        UsageGroup::Day(group) => day = Some(group),
        UsageGroup::Model(group) => model = Some(group),
        UsageGroup::Key(group) => key = Some(group.to_string()),
        // `parse_query` never groups by account.
        UsageGroup::Account(_) => {}
    }
    UsageEntry { day, model, key, totals }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_query_error_names_the_parameter() {
        for (query, field) in [
            ("from=2026-02-30", "from"),
            ("to=soon", "to"),
            ("by=hour", "by"),
            ("by=account", "by"),
            ("form=2026-01-01", "form"),
            ("by=day&by=day", "by"),
            ("from=2026-02-02&to=2026-02-01", "from"),
        ] {
            assert_eq!(parse_query(query).unwrap_err().field.as_deref(), Some(field), "{query}");
        }
        assert!(parse_query("from=2026-02-01&to=2026-02-01&by=model").is_ok());
        assert!(parse_query("").is_ok());
        assert_eq!(parse_query("by=account").unwrap_err().reason, "`by` must be day, model or key");
    }
}
