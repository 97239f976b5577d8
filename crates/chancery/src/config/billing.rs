//! `[billing]`: the currency, and what stands on every invoice.

use super::bounds;
use super::reader::Reader;
use chancery_domain::{Bounds, Currency, Lines, TaxRate};

const LETTERHEAD: &str = "billing.letterhead";
const PAYMENT: &str = "billing.payment";
const TAX_NAME: &str = "billing.tax_name";
const TAX_PERCENT: &str = "billing.tax_percent";

#[derive(Debug)]
pub struct Billing {
    pub currency: Currency,
    /// What stands below the firm's name, a line each. Empty: nothing.
    pub letterhead: String,
    /// How to pay. Empty: nothing is said.
    pub payment: String,
    /// How many days after its day of issue an invoice is due.
    pub payment_days: u16,
    /// Its name and rate.
    pub tax: Option<(String, TaxRate)>,
}

pub fn billing(reader: &mut Reader) -> Billing {
    let currency = reader.parsed("billing.currency", Currency::USD, "USD");
    let letterhead = lines(reader, LETTERHEAD, "the letterhead", bounds::LETTERHEAD_CHARS);
    let payment = lines(reader, PAYMENT, "the text on how to pay", bounds::PAYMENT_CHARS);
    let payment_days = reader.integer("billing.payment_days", 30, bounds::PAYMENT_DAYS);
    Billing {
        currency,
        letterhead,
        payment,
        payment_days: u16::try_from(payment_days).unwrap_or(u16::MAX),
        tax: tax(reader),
    }
}

/// A text of a few lines, or nothing.
fn lines(reader: &mut Reader, key: &str, what: &'static str, max_chars: usize) -> String {
    let Some(text) = reader.optional_text(key) else { return String::new() };
    let bounds = Bounds { what, min_chars: 0, max_chars, lines: Lines::Many };
    match bounds.take(&text) {
        Ok(text) if text.lines().count() > bounds::BILLING_LINES => {
            let max = bounds::BILLING_LINES;
            reader.problem(key, format!("{what} has {} lines; {max} at most", text.lines().count()));
            String::new()
        }
        Ok(text) => text,
        Err(error) => {
            reader.problem(key, error);
            String::new()
        }
    }
}

/// A tax has both a name and a rate: one alone is half of a line on an invoice.
fn tax(reader: &mut Reader) -> Option<(String, TaxRate)> {
    let name = reader.optional_text(TAX_NAME);
    let percent = reader.optional_text(TAX_PERCENT);
    let name = name.and_then(|name| {
        let bounds = Bounds {
            what: "the tax's name",
            min_chars: 1,
            max_chars: bounds::TAX_NAME_CHARS,
            lines: Lines::One,
        };
        bounds.take(&name).map_err(|error| reader.problem(TAX_NAME, error)).ok()
    });
    let is_set = |reader: &Reader, key| reader.origin(key) != super::source::Origin::Default;
    match (is_set(reader, TAX_NAME), is_set(reader, TAX_PERCENT)) {
        (true, false) => {
            reader.problem(TAX_PERCENT, format!("it is needed where {TAX_NAME} is set, for example \"6.25\""))
        }
        (false, true) => reader
            .problem(TAX_NAME, format!("it is needed where {TAX_PERCENT} is set, for example \"Sales tax\"")),
        _ => {}
    }
    let rate: TaxRate = percent?.parse().map_err(|error| reader.problem(TAX_PERCENT, error)).ok()?;
    Some((name?, rate))
}
