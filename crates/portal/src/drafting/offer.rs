//! What the API offers to draft with: the model, how much it holds, and its prices. Asked of the API and not of the
//! configuration, because the API may be another's.

use super::counts::tokens;
use super::fault::{Fault, Trouble};
use chancery_domain::{Currency, MoneyError, Prices};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) model: String,
    pub(crate) context_tokens: u32,
    pub(crate) currency: Currency,
    pub(crate) prices: Prices,
}

/// `GET /v1/models`, as far as it matters here.
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

impl Offer {
    /// Of the model that is wanted, or of the first.
    pub(super) fn choose(models: Models, wanted: Option<&str>) -> Result<Self, Fault> {
        let found = match wanted {
            Some(wanted) => models.data.into_iter().find(|model| model.id == wanted),
            None => models.data.into_iter().next(),
        };
        let Some(Model { id, context_tokens, currency, input_per_million, output_per_million }) = found
        else {
            let story = format!(
                "it does not offer the model {}",
                wanted.unwrap_or("that portal.drafting.model names")
            );
            return Err(Fault::new(Trouble::ModelMissing, story));
        };
        let unreadable =
            |what: &str| Fault::new(Trouble::NotUnderstood, format!("the {what} of {id} cannot be read"));
        let price = |text: &str| text.parse().map_err(|_| unreadable("price"));
        let prices = Prices::new(price(&input_per_million)?, price(&output_per_million)?);
        Ok(Self {
            context_tokens,
            currency: currency.parse().map_err(|_| unreadable("currency"))?,
            prices: prices.map_err(|_| unreadable("price"))?,
            model: id,
        })
    }

    /// `600 tokens cost at most $0.00024.`
    pub(crate) fn longest_reply_words(&self, max_output_tokens: u32) -> Result<String, MoneyError> {
        let cost = self.prices.output.cost(max_output_tokens)?;
        Ok(format!("{} cost at most {}.", tokens(max_output_tokens), self.currency.exact_to_read(cost)))
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
    fn the_wanted_model_is_taken_or_the_first() {
        assert_eq!(Offer::choose(models(), None).unwrap().model, "one");
        assert_eq!(Offer::choose(models(), Some("two")).unwrap().model, "two");
        assert_eq!(Offer::choose(models(), Some("three")).unwrap_err().trouble, Trouble::ModelMissing);
    }

    #[test]
    fn the_longest_reply_has_a_price_before_it_is_asked_for() {
        let offer = Offer::choose(models(), None).unwrap();
        assert_eq!(offer.longest_reply_words(600).unwrap(), "600 tokens cost at most $0.00024.");
    }
}
