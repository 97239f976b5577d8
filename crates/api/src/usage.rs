//! `GET /v1/usage?from&to&by`: what the key's account has used, summed from the ledger. Both days are included, in UTC.

use crate::ApiState;
use crate::caller::Authenticated;
use crate::error::ApiError;
use axum::Json;
use axum::extract::{RawQuery, State};
use chancery_domain::{Day, Nanos};
use chancery_metering::MeterError;
use chancery_store::{StoreError, UsageBy, UsageGroup, UsageQuery, UsageSum, UsageTotals};

const PARAMETERS: [&str; 3] = ["from", "to", "by"];

#[derive(serde::Serialize)]
pub(crate) struct UsageReply {
    from: Option<Day>,
    to: Option<Day>,
    by: &'static str,
    currency: String,
    data: Vec<UsageEntry>,
    total: Totals,
}

#[derive(serde::Serialize)]
struct UsageEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    day: Option<Day>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(serde::Serialize)]
struct Totals {
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
    /// The exact decimal amount; `cost_nanos` is the same as an integer.
    cost: String,
    cost_nanos: Nanos,
}

pub(crate) async fn handle(
    State(state): State<ApiState>,
    Authenticated(caller): Authenticated,
    RawQuery(query): RawQuery,
) -> Result<Json<UsageReply>, ApiError> {
    let query = parse_query(query.as_deref().unwrap_or_default())?;
    let (from, to, by) = (query.from, query.to, query.by);
    let sums = state.meter.usage(UsageQuery { account: Some(caller.account), ..query }).await;
    let sums = sums.map_err(|error| match error {
        MeterError::Store(StoreError::SumTooLarge) => {
            ApiError::invalid_value("from", "the sum is too large to be exact; ask for fewer days")
        }
        error => error.into(),
    })?;
    let UsageTotals { requests, input_tokens, output_tokens, cost } =
        UsageTotals::of(&sums).map_err(MeterError::from)?;
    let total = Totals { requests, input_tokens, output_tokens, cost: cost.to_string(), cost_nanos: cost };
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
        let Some(place) = PARAMETERS.iter().position(|known| *known == name) else {
            let shown: String = name.chars().take(60).collect();
            let hint = match chancery_domain::nearest(name, PARAMETERS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the known ones are {}", PARAMETERS.join(", ")),
            };
            return Err(
                ApiError::malformed(format!("there is no parameter `{shown}`; {hint}")).at_field(shown)
            );
        };
        if found[place].replace(value).is_some() {
            return Err(ApiError::malformed(format!("`{name}` stands twice in the query")).at_field(name));
        }
    }
    let day = |place: usize| -> Result<Option<Day>, ApiError> {
        let parsed = found[place].map(str::parse::<Day>).transpose();
        parsed.map_err(|error| ApiError::invalid_value(PARAMETERS[place], error.to_string()))
    };
    let (from, to) = (day(0)?, day(1)?);
    if let (Some(from), Some(to)) = (from, to)
        && from > to
    {
        return Err(ApiError::invalid_value("from", format!("`from` ({from}) is after `to` ({to})")));
    }
    let by = found[2].map_or(Ok(UsageBy::Day), str::parse::<UsageBy>);
    let by = by.map_err(|error| ApiError::invalid_value("by", format!("`by` {error}")))?;
    Ok(UsageQuery { account: None, from, to, by })
}

fn entry(sum: UsageSum) -> UsageEntry {
    let totals = Totals {
        requests: sum.requests,
        input_tokens: sum.input_tokens,
        output_tokens: sum.output_tokens,
        cost: sum.cost.to_string(),
        cost_nanos: sum.cost,
    };
    let (mut day, mut model, mut key) = (None, None, None);
    match sum.group {
        UsageGroup::Day(group) => day = Some(group),
        UsageGroup::Model(group) => model = Some(group),
        UsageGroup::Key(group) => key = Some(group.to_string()),
    }
    UsageEntry { day, model, key, totals }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_query_is_refused_by_the_name_of_its_parameter() {
        for (query, field) in [
            ("from=2026-02-30", "from"),
            ("to=soon", "to"),
            ("by=hour", "by"),
            ("form=2026-01-01", "form"),
            ("by=day&by=day", "by"),
            ("from=2026-02-02&to=2026-02-01", "from"),
        ] {
            assert_eq!(parse_query(query).unwrap_err().field.as_deref(), Some(field), "{query}");
        }
        assert!(parse_query("from=2026-02-01&to=2026-02-01&by=model").is_ok());
        assert!(parse_query("").is_ok());
    }
}
