//! The model, its context size and its prices, as the API reports them. The configuration does not have them, because the API may
//! be another installation.

use super::error::{DraftError, DraftErrorKind};
use super::token_count::tokens;
use super::tuning::ModelSize;
use chancery_domain::{Currency, MoneyError, Nanos, Prices};
use serde::Deserialize;
use std::cmp::Reverse;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelOffer {
    pub(crate) model: String,
    /// `None` if the API does not know.
    pub(crate) parameters: Option<u64>,
    pub(crate) context_tokens: u32,
    pub(crate) currency: Currency,
    pub(crate) prices: Prices,
}

/// The parts of `GET /v1/models` that are used here.
#[derive(Deserialize)]
pub(super) struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    parameters: Option<u64>,
    context_tokens: u32,
    currency: String,
    input_per_million: String,
    cached_input_per_million: Option<String>,
    output_per_million: String,
}

impl ModelOffer {
    /// Takes the configured model, or the one with the most parameters. A model whose parameters the API does not know is on
    /// another server and counts as larger than any other. Of equals, the first.
    pub(super) fn choose(models: Models, configured: Option<&str>) -> Result<Self, DraftError> {
        let found = match configured {
            Some(configured) => models.data.into_iter().find(|model| model.id == configured),
            None => models.data.into_iter().min_by_key(|model| Reverse(model.parameters.unwrap_or(u64::MAX))),
        };
        let Some(model) = found else {
            let detail = configured.map_or_else(
                || "the API has no models".to_owned(),
                |id| format!("model {id} is not available"),
            );
            return Err(DraftError::new(DraftErrorKind::UnknownModel, detail));
        };
        let Model {
            id,
            parameters,
            context_tokens,
            currency,
            input_per_million,
            cached_input_per_million,
            output_per_million,
        } = model;
        let invalid =
            |what: &str| DraftError::new(DraftErrorKind::InvalidReply, format!("invalid {what} of {id}"));
        let price = |text: &str| text.parse().map_err(|_| invalid("price"));
        let mut prices = Prices::new(price(&input_per_million)?, price(&output_per_million)?);
        if let Some(cached_input) = &cached_input_per_million {
            let cached_input = price(cached_input)?;
            prices = prices.and_then(|prices| prices.with_cached_input(cached_input));
        }
        Ok(Self {
            parameters,
            context_tokens,
            currency: currency.parse().map_err(|_| invalid("currency"))?,
            prices: prices.map_err(|_| invalid("price"))?,
            model: id,
        })
    }

    pub(crate) fn size(&self) -> ModelSize {
        ModelSize::of(self.parameters)
    }

    /// `At most $0.00044 for 600 tokens of output and up to 2,000 tokens of input.` The input is what may be sent, or what
    /// the context leaves room for.
    pub(crate) fn max_cost_text(
        &self,
        max_input_tokens: u32,
        max_output_tokens: u32,
    ) -> Result<String, MoneyError> {
        let max_input_tokens = max_input_tokens.min(self.context_tokens.saturating_sub(max_output_tokens));
        let cost = self.prices.max_cost(max_input_tokens, max_output_tokens)?;
        Ok(format!(
            "At most {} for {} of output and up to {} of input.",
            self.currency.format_exact(cost),
            tokens(max_output_tokens),
            tokens(max_input_tokens)
        ))
    }

    /// What stands before the figures of an amount: `$`, or `CHF` and a space.
    pub(crate) fn currency_prefix(&self) -> String {
        let zero = self.currency.format_exact(Nanos(0));
        zero.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn models() -> Models {
        let model = |id: &str| {
            json!({"id": id, "object": "model", "context_tokens": 8192, "currency": "USD",
                "input_per_million": "0.10", "output_per_million": "0.40"})
        };
        serde_json::from_value(json!({"object": "list", "data": [model("one"), model("two")]})).unwrap()
    }

    #[test]
    fn configured_or_first_of_equal_models_is_used() {
        assert_eq!(ModelOffer::choose(models(), None).unwrap().model, "one");
        assert_eq!(ModelOffer::choose(models(), Some("two")).unwrap().model, "two");
        assert_eq!(
            ModelOffer::choose(models(), Some("three")).unwrap_err().kind,
            DraftErrorKind::UnknownModel
        );
    }

    #[test]
    fn largest_model_is_used_and_unknown_counts_as_larger() {
        let model = |(id, parameters): (&str, Option<u64>)| {
            let mut model = json!({"id": id, "context_tokens": 8192, "currency": "USD",
                "input_per_million": "0.10", "output_per_million": "0.40"});
            if let Some(parameters) = parameters {
                model["parameters"] = parameters.into();
            }
            model
        };
        let best = |models: &[(&str, Option<u64>)]| {
            let data: Vec<_> = models.iter().copied().map(model).collect();
            ModelOffer::choose(serde_json::from_value(json!({ "data": data })).unwrap(), None).unwrap()
        };
        let (tiny, small, unknown) =
            (("tiny", Some(134_515_008)), ("small", Some(494_032_768)), ("other", None));
        let chosen = best(&[tiny, small]);
        assert_eq!((chosen.model.as_str(), chosen.size()), ("small", ModelSize::Small));
        assert_eq!(best(&[small, unknown, tiny]).model, "other");
    }

    #[test]
    fn cached_input_price_is_optional_and_never_above_the_input_price() {
        let with = |price: &str| {
            let model = json!({"id": "m", "context_tokens": 8192, "currency": "USD", "input_per_million": "0.10",
                "cached_input_per_million": price, "output_per_million": "0.40"});
            ModelOffer::choose(serde_json::from_value(json!({ "data": [model] })).unwrap(), None)
        };
        assert_eq!(with("0.025").unwrap().prices.cached_input.to_string(), "0.025");
        assert_eq!(with("0.101").unwrap_err().kind, DraftErrorKind::InvalidReply);
        assert_eq!(ModelOffer::choose(models(), None).unwrap().prices.cached_discount(), None);
    }

    #[test]
    fn max_cost_includes_the_input_and_is_bounded_by_the_context() {
        let model_offer = ModelOffer::choose(models(), None).unwrap();
        assert_eq!(
            model_offer.max_cost_text(2_000, 600).unwrap(),
            "At most $0.00044 for 600 tokens of output and up to 2,000 tokens of input."
        );
        assert_eq!(
            model_offer.max_cost_text(100_000, 600).unwrap(),
            "At most $0.0009992 for 600 tokens of output and up to 7,592 tokens of input."
        );
        assert_eq!(model_offer.currency_prefix(), "$");
    }
}
