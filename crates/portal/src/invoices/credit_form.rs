//! The credit note form: the whole remaining amount or part of the subtotal, and the reason.

use chancery_domain::{
    CREDIT_REASON_BOUNDS, CreditAmount, CreditError, Credited, Currency, Invoice, MinorUnits, Nanos,
};
use chancery_web::{Problems, text_error_message};
use serde::Deserialize;

/// Submitted values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CreditInput {
    /// `whole` or `part`.
    pub(super) credit: String,
    /// Part of the subtotal, such as `50.00`; for `part` only.
    pub(super) amount: String,
    pub(super) reason: String,
    /// The subtotal credited when the page was rendered, in minor units. Empty means zero.
    pub(super) so_far: String,
    /// If not empty, the note is only previewed.
    pub(super) look: String,
}

/// Validated values.
pub(super) struct ValidCredit {
    pub(super) amount: CreditAmount,
    pub(super) reason: String,
}

impl CreditInput {
    pub(super) fn read(
        &self,
        invoice: &Invoice,
        credited: Credited,
        left: Credited,
    ) -> Result<ValidCredit, Problems> {
        let mut problems = Problems::default();
        let currency = invoice.bill.currency;
        let amount = match self.credit.as_str() {
            "whole" => Some(CreditAmount::Full),
            "part" => {
                let part = part(self.amount.trim(), currency, left.subtotal);
                part.map_err(|why| problems.add("amount", why)).ok().map(CreditAmount::Part)
            }
            _ => {
                problems.add("whole", "Choose an amount");
                None
            }
        };
        // The credit rule itself rejects it, for example an amount that overflows.
        if let Some(Err(error)) = amount.map(|amount| invoice.bill.credit_note(amount, credited)) {
            problems.add("amount", credit_error_message(error, currency, left.subtotal));
        }
        let reason = CREDIT_REASON_BOUNDS.take(&self.reason);
        let reason =
            reason.map_err(|error| problems.add("reason", text_error_message(&error, "Enter a reason")));
        match (amount, reason) {
            (Some(amount), Ok(reason)) if !problems.any() => Ok(ValidCredit { amount, reason }),
            _ => Err(problems),
        }
    }

    /// Whether the invoice was credited since the page was rendered.
    pub(super) fn is_outdated(&self, credited: Credited) -> bool {
        let so_far = if self.so_far.is_empty() { "0" } else { &self.so_far };
        so_far != credited.subtotal.0.to_string()
    }
}

/// At most the remaining subtotal.
fn part(text: &str, currency: Currency, left: MinorUnits) -> Result<MinorUnits, String> {
    let example = currency.to_decimal_string(MinorUnits(10_i64.pow(currency.minor_digits()) * 50));
    let like = || format!("Enter an amount like {example}");
    if text.is_empty() {
        return Err("Enter an amount".to_owned());
    }
    let exact: Nanos = text.parse().map_err(|_| like())?;
    let amount = currency.round(exact);
    if currency.to_nanos(amount) != Ok(exact) {
        return Err(match currency.minor_digits() {
            0 => format!("Enter a whole number: {} has no decimals", currency.as_str()),
            digits => format!("Use at most {digits} decimals for {}, like {example}", currency.as_str()),
        });
    }
    match amount {
        MinorUnits(..=0) => Err(credit_error_message(CreditError::NotPositive, currency, left)),
        amount if amount > left => Err(credit_error_message(CreditError::ExceedsRemaining, currency, left)),
        amount => Ok(amount),
    }
}

pub(super) fn credit_error_message(why: CreditError, currency: Currency, left: MinorUnits) -> String {
    match why {
        CreditError::NotPositive => "Enter an amount above zero".to_owned(),
        CreditError::ExceedsRemaining => {
            format!("Enter at most {}, the remaining subtotal", currency.format_amount(left))
        }
        CreditError::Money(_) => "Enter a smaller amount".to_owned(),
    }
}
