//! The model, its context size and its prices, as the API reports them. The configuration does not have them, because the API may
//! be another installation.

use super::error::{DraftError, DraftErrorKind};
use super::token_count::tokens;
use chancery_domain::{Currency, MoneyError, Prices};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelOffer {
    pub(crate) model: String,
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
    context_tokens: u32,
    currency: String,
    input_per_million: String,
    output_per_million: String,
}

impl ModelOffer {
    /// Takes the configured model, or the first one.
    pub(super) fn choose(models: Models, configured: Option<&str>) -> Result<Self, DraftError> {
        let found = match configured {
            Some(configured) => models.data.into_iter().find(|model| model.id == configured),
            None => models.data.into_iter().next(),
        };
        let Some(Model { id, context_tokens, currency, input_per_million, output_per_million }) = found
        else {
            let detail = configured.map_or_else(
                || "the API has no models".to_owned(),
                |id| format!("model {id} is not available"),
            );
            return Err(DraftError::new(DraftErrorKind::UnknownModel, detail));
        };
        let invalid =
            |what: &str| DraftError::new(DraftErrorKind::InvalidReply, format!("invalid {what} of {id}"));
        let price = |text: &str| text.parse().map_err(|_| invalid("price"));
        let prices = Prices::new(price(&input_per_million)?, price(&output_per_million)?);
        Ok(Self {
            context_tokens,
            currency: currency.parse().map_err(|_| invalid("currency"))?,
            prices: prices.map_err(|_| invalid("price"))?,
            model: id,
        })
    }

    /// `At most $0.00024 for 600 tokens of output.`
    pub(crate) fn max_cost_text(&self, max_output_tokens: u32) -> Result<String, MoneyError> {
        let cost = self.prices.output.cost(max_output_tokens)?;
        Ok(format!(
            "At most {} for {} of output.",
            self.currency.format_exact(cost),
            tokens(max_output_tokens)
        ))
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
    fn configured_or_first_model_is_used() {
        assert_eq!(ModelOffer::choose(models(), None).unwrap().model, "one");
        assert_eq!(ModelOffer::choose(models(), Some("two")).unwrap().model, "two");
        assert_eq!(
            ModelOffer::choose(models(), Some("three")).unwrap_err().kind,
            DraftErrorKind::UnknownModel
        );
    }

    #[test]
    fn max_cost_is_shown_before_drafting() {
        let model_offer = ModelOffer::choose(models(), None).unwrap();
        assert_eq!(model_offer.max_cost_text(600).unwrap(), "At most $0.00024 for 600 tokens of output.");
    }
}
