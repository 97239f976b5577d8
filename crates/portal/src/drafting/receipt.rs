//! What a draft took and cost, as the person reads it beside the letter.

use super::counts::tokens;
use super::offer::Offer;
use chancery_domain::{MoneyError, Nanos};
use serde::Serialize;

/// The end of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) model: String,
    pub(crate) stop_reason: String,
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) input_cost: Nanos,
    pub(crate) output_cost: Nanos,
    pub(crate) cost: Nanos,
    /// The same in words, ready to be shown.
    pub(crate) words: ReceiptWords,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ReceiptWords {
    pub(crate) read: String,
    pub(crate) read_cost: String,
    pub(crate) wrote: String,
    pub(crate) wrote_cost: String,
    pub(crate) cost: String,
    /// The model, how it ended, and what is left to do.
    pub(crate) note: String,
}

impl Receipt {
    pub(super) fn new(
        offer: &Offer,
        stop_reason: &str,
        input_tokens: u32,
        output_tokens: u32,
    ) -> Result<Self, MoneyError> {
        let input_cost = offer.prices.input.cost(input_tokens)?;
        let output_cost = offer.prices.output.cost(output_tokens)?;
        let cost = offer.prices.cost(input_tokens, output_tokens)?;
        let words = ReceiptWords {
            read: format!("Read {}", tokens(input_tokens)),
            read_cost: offer.currency.exact_to_read(input_cost),
            wrote: format!("Wrote {}", tokens(output_tokens)),
            wrote_cost: offer.currency.exact_to_read(output_cost),
            cost: offer.currency.exact_to_read(cost),
            note: format!(
                "{}, {}. Check every fact before you send it.",
                offer.model,
                how_ended(stop_reason)
            ),
        };
        Ok(Self {
            model: offer.model.clone(),
            stop_reason: stop_reason.to_owned(),
            input_tokens,
            output_tokens,
            input_cost,
            output_cost,
            cost,
            words,
        })
    }
}

fn how_ended(stop_reason: &str) -> &'static str {
    match stop_reason {
        "complete" => "ended by itself",
        "max_output_tokens" => "cut off at the longest reply you allowed",
        "context_length" => "cut off at the longest text it can hold",
        _ => "ended early",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Currency, Prices};

    fn offer() -> Offer {
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        Offer { model: "smollm2-135m".to_owned(), context_tokens: 8_192, currency: Currency::USD, prices }
    }

    #[test]
    fn the_receipt_adds_up_to_the_bill() {
        let receipt = Receipt::new(&offer(), "complete", 1_846, 412).unwrap();
        assert_eq!(receipt.cost, receipt.input_cost.checked_add(receipt.output_cost).unwrap());
        let words = receipt.words;
        assert_eq!((words.read.as_str(), words.read_cost.as_str()), ("Read 1,846 tokens", "$0.0001846"));
        assert_eq!((words.wrote.as_str(), words.wrote_cost.as_str()), ("Wrote 412 tokens", "$0.0001648"));
        assert_eq!(words.cost, "$0.0003494");
        assert_eq!(words.note, "smollm2-135m, ended by itself. Check every fact before you send it.");
    }

    #[test]
    fn a_draft_that_was_cut_off_says_so() {
        let receipt = Receipt::new(&offer(), "max_output_tokens", 1, 16).unwrap();
        assert!(receipt.words.note.contains("cut off at the longest reply you allowed"));
    }
}
