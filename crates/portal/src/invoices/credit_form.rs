//! The form of a credit note: all that is left of an invoice, or an amount of its subtotal, and why.

use chancery_domain::{
    CREDIT_REASON, CreditAmount, CreditError, Credited, Currency, Invoice, MinorUnits, Nanos,
};
use chancery_web::{Problems, text_problem};
use serde::Deserialize;

/// As typed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CreditTyped {
    /// `whole` or `part`.
    pub(super) credit: String,
    /// Of the subtotal, such as `50.00`; for a part.
    pub(super) amount: String,
    pub(super) reason: String,
    /// What was credited when the page was made, in minor units of the subtotal. Empty: nothing.
    pub(super) so_far: String,
    /// Anything: only to be shown.
    pub(super) look: String,
}

/// As it can be done.
pub(super) struct Wanted {
    pub(super) amount: CreditAmount,
    pub(super) reason: String,
}

impl CreditTyped {
    pub(super) fn read(
        &self,
        invoice: &Invoice,
        credited: Credited,
        left: Credited,
    ) -> Result<Wanted, Problems> {
        let mut problems = Problems::default();
        let currency = invoice.bill.currency;
        let amount = match self.credit.as_str() {
            "whole" => Some(CreditAmount::Whole),
            "part" => {
                let part = part(self.amount.trim(), currency, left.subtotal);
                part.map_err(|why| problems.add("amount", why)).ok().map(CreditAmount::Part)
            }
            _ => {
                problems.add("whole", "Choose how much to take back");
                None
            }
        };
        // What the rule itself refuses, such as a sum that is too large to count.
        if let Some(Err(error)) = amount.map(|amount| invoice.bill.credited(amount, credited)) {
            problems.add("amount", refusal_words(error, currency, left.subtotal));
        }
        let reason = CREDIT_REASON.take(&self.reason);
        let reason = reason
            .map_err(|error| problems.add("reason", text_problem(&error, "Say why, for whoever gets it")));
        match (amount, reason) {
            (Some(amount), Ok(reason)) if !problems.any() => Ok(Wanted { amount, reason }),
            _ => Err(problems),
        }
    }

    /// Whether something was credited since the page was made.
    pub(super) fn is_outdated(&self, credited: Credited) -> bool {
        let so_far = if self.so_far.is_empty() { "0" } else { &self.so_far };
        so_far != credited.subtotal.0.to_string()
    }
}

/// At most what is left of the subtotal.
fn part(text: &str, currency: Currency, left: MinorUnits) -> Result<MinorUnits, String> {
    let example = currency.decimal(MinorUnits(10_i64.pow(currency.minor_digits()) * 50));
    let like = || format!("Write the amount like {example}, without currency and grouping");
    if text.is_empty() {
        return Err("Enter how much of the subtotal to take back".to_owned());
    }
    let exact: Nanos = text.parse().map_err(|_| like())?;
    let amount = currency.round(exact);
    if currency.exactly(amount) != Ok(exact) {
        return Err(match currency.minor_digits() {
            0 => format!("{} has no decimals; write a whole number", currency.as_str()),
            digits => format!("{} has {digits} decimals at most; write it like {example}", currency.as_str()),
        });
    }
    match amount {
        MinorUnits(..=0) => Err(refusal_words(CreditError::NotPositive, currency, left)),
        amount if amount > left => Err(refusal_words(CreditError::MoreThanIsLeft, currency, left)),
        amount => Ok(amount),
    }
}

pub(super) fn refusal_words(why: CreditError, currency: Currency, left: MinorUnits) -> String {
    match why {
        CreditError::NotPositive => "Write an amount above zero".to_owned(),
        CreditError::MoreThanIsLeft => {
            format!("{} of the subtotal is left; write no more than that", currency.to_read(left))
        }
        CreditError::Money(_) => "This amount is too large".to_owned(),
    }
}
