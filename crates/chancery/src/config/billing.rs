//! `[billing]`: the currency, and the text on every invoice.

use super::bounds;
use super::reader::Reader;
use super::source::Origin;
use anyhow::anyhow;
use chancery_domain::{Currency, LineMode, TaxRate, TextBounds};
use chancery_invoicing::PdfFonts;
use std::path::{Path, PathBuf};

const LETTERHEAD: &str = "billing.letterhead";
const PAYMENT: &str = "billing.payment";
const FONTS: &str = "billing.fonts";
const TAX_NAME: &str = "billing.tax_name";
const TAX_PERCENT: &str = "billing.tax_percent";

#[derive(Debug)]
pub struct Billing {
    pub currency: Currency,
    /// Lines printed below the firm's name; may be empty.
    pub letterhead: String,
    /// Payment instructions; may be empty.
    pub payment: String,
    /// Days from issue to due date.
    pub payment_days: u16,
    /// Name and rate.
    pub tax: Option<(String, TaxRate)>,
    /// Fonts for scripts that the embedded fonts lack.
    pub fonts: Vec<PathBuf>,
}

impl Billing {
    /// Reads the font files.
    pub fn pdf_fonts(&self) -> anyhow::Result<PdfFonts> {
        PdfFonts::read(&self.fonts).map_err(|error| anyhow!("{FONTS}: {error}"))
    }
}

pub fn billing(reader: &mut Reader, folder: &Path) -> Billing {
    let currency = reader.parsed("billing.currency", Currency::USD, "USD");
    let letterhead = lines(reader, LETTERHEAD, "the letterhead", bounds::LETTERHEAD_CHARS);
    let payment = lines(reader, PAYMENT, "the payment instructions", bounds::PAYMENT_CHARS);
    let payment_days = reader.integer("billing.payment_days", 30, bounds::PAYMENT_DAYS);
    Billing {
        currency,
        letterhead,
        payment,
        payment_days: u16::try_from(payment_days).unwrap_or(u16::MAX),
        tax: tax(reader),
        fonts: fonts(reader, folder),
    }
}

fn fonts(reader: &mut Reader, folder: &Path) -> Vec<PathBuf> {
    let paths = reader.texts(FONTS);
    if paths.len() > bounds::FONTS {
        reader.problem(FONTS, format!("has {} fonts; at most {} allowed", paths.len(), bounds::FONTS));
    }
    let is_in_file = matches!(reader.origin(FONTS), Origin::File { .. });
    let path = |path: String| if is_in_file { folder.join(path) } else { PathBuf::from(path) };
    paths.into_iter().map(path).collect()
}

/// Reads a text of a few lines; empty if not set.
fn lines(reader: &mut Reader, key: &str, what: &'static str, max_chars: usize) -> String {
    let Some(text) = reader.optional_text(key) else { return String::new() };
    let bounds = TextBounds { what, min_chars: 0, max_chars, lines: LineMode::Multiple };
    match bounds.take(&text) {
        Ok(text) if text.lines().count() > bounds::BILLING_LINES => {
            let max = bounds::BILLING_LINES;
            reader.problem(key, format!("{what} has {} lines; at most {max} allowed", text.lines().count()));
            String::new()
        }
        Ok(text) => text,
        Err(error) => {
            reader.problem(key, error);
            String::new()
        }
    }
}

/// A tax needs both a name and a rate; an invoice cannot show one without the other.
fn tax(reader: &mut Reader) -> Option<(String, TaxRate)> {
    let name = reader.optional_text(TAX_NAME);
    let percent = reader.optional_text(TAX_PERCENT);
    let name = name.and_then(|name| {
        let bounds = TextBounds {
            what: "the tax name",
            min_chars: 1,
            max_chars: bounds::TAX_NAME_CHARS,
            lines: LineMode::Single,
        };
        bounds.take(&name).map_err(|error| reader.problem(TAX_NAME, error)).ok()
    });
    let is_set = |reader: &Reader, key| reader.origin(key) != Origin::Default;
    match (is_set(reader, TAX_NAME), is_set(reader, TAX_PERCENT)) {
        (true, false) => {
            reader.problem(TAX_PERCENT, format!("required when {TAX_NAME} is set, for example \"6.25\""));
        }
        (false, true) => {
            reader
                .problem(TAX_NAME, format!("required when {TAX_PERCENT} is set, for example \"Sales tax\""));
        }
        _ => {}
    }
    let rate: TaxRate = percent?.parse().map_err(|error| reader.problem(TAX_PERCENT, error)).ok()?;
    Some((name?, rate))
}
