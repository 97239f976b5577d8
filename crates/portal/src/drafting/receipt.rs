//! Usage and cost of a draft, as shown beside the letter.

use super::model_offer::ModelOffer;
use super::token_count::tokens;
use chancery_domain::{BilledTokens, MoneyError, Nanos};
use serde::Serialize;

/// The result of a finished draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) model: String,
    pub(crate) stop_reason: String,
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) input_cost: Nanos,
    pub(crate) output_cost: Nanos,
    pub(crate) cost: Nanos,
    /// The same as text for the user.
    pub(crate) text: ReceiptText,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ReceiptText {
    pub(crate) read: String,
    pub(crate) read_cost: String,
    pub(crate) wrote: String,
    pub(crate) wrote_cost: String,
    pub(crate) cost: String,
    /// The model, why it stopped, and what is left to do.
    pub(crate) note: String,
}

impl Receipt {
    pub(super) fn new(
        model_offer: &ModelOffer,
        stop_reason: &str,
        billed: BilledTokens,
    ) -> Result<Self, MoneyError> {
        let (input_tokens, output_tokens) = (billed.input(), billed.output());
        let input_cost = model_offer.prices.cost(billed.without_output())?;
        let output_cost = model_offer.prices.output.cost(output_tokens)?;
        let cost = model_offer.prices.cost(billed)?;
        let text = ReceiptText {
            read: format!("Input: {}", tokens(input_tokens)),
            read_cost: model_offer.currency.format_exact(input_cost),
            wrote: format!("Output: {}", tokens(output_tokens)),
            wrote_cost: model_offer.currency.format_exact(output_cost),
            cost: model_offer.currency.format_exact(cost),
            note: format!(
                "{}{}. Check every fact before you send it.",
                model_offer.model,
                stop_reason_text(stop_reason)
            ),
        };
        Ok(Self {
            model: model_offer.model.clone(),
            stop_reason: stop_reason.to_owned(),
            input_tokens,
            output_tokens,
            input_cost,
            output_cost,
            cost,
            text,
        })
    }
}

fn stop_reason_text(stop_reason: &str) -> &'static str {
    match stop_reason {
        "complete" | "stop_sequence" => "",
        "max_output_tokens" => ", cut off at the maximum length",
        "context_length" => ", cut off at the model’s limit",
        "repetition" => ", stopped because it repeated itself",
        "deadline" => ", cut off at the server’s time limit",
        "content_filter" => ", cut off by the model server’s filter",
        _ => ", stopped early",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Currency, Prices};

    fn model_offer() -> ModelOffer {
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        ModelOffer {
            model: "smollm2-135m".to_owned(),
            parameters: None,
            context_tokens: 8_192,
            currency: Currency::USD,
            prices,
        }
    }

    #[test]
    fn receipt_adds_up_to_the_cost() {
        let tokens = BilledTokens::without_cached(1_846, 412);
        let receipt = Receipt::new(&model_offer(), "complete", tokens).unwrap();
        assert_eq!(receipt.cost, receipt.input_cost.checked_add(receipt.output_cost).unwrap());
        let text = receipt.text;
        assert_eq!((text.read.as_str(), text.read_cost.as_str()), ("Input: 1,846 tokens", "$0.0001846"));
        assert_eq!((text.wrote.as_str(), text.wrote_cost.as_str()), ("Output: 412 tokens", "$0.0001648"));
        assert_eq!(text.cost, "$0.0003494");
        assert_eq!(text.note, "smollm2-135m. Check every fact before you send it.");
    }

    #[test]
    fn receipt_has_the_discount_for_cached_tokens() {
        let mut model_offer = model_offer();
        model_offer.prices = model_offer.prices.with_cached_input("0.025".parse().unwrap()).unwrap();
        let tokens = BilledTokens::new(1_846, 1_600, 412).unwrap();
        let receipt = Receipt::new(&model_offer, "complete", tokens).unwrap();
        assert_eq!((receipt.input_tokens, receipt.input_cost), (1_846, Nanos(246 * 100 + 1_600 * 25)));
        assert_eq!(receipt.cost, receipt.input_cost.checked_add(receipt.output_cost).unwrap());
    }

    #[test]
    fn truncated_draft_says_so() {
        let tokens = BilledTokens::without_cached(1, 16);
        let receipt = Receipt::new(&model_offer(), "max_output_tokens", tokens).unwrap();
        assert!(receipt.text.note.contains(", cut off at the maximum length"));
    }
}
