//! The disputed amount as people type it, or copy it from a page.

use chancery_domain::{Currency, MinorUnits};

/// Accepts `1207.7`, and `$1,207.70` as pages show it.
pub(super) fn parse_amount(text: &str, currency: Currency) -> Option<MinorUnits> {
    let zero = currency.format_amount(MinorUnits(0));
    let symbol = zero.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').trim_end();
    let figures = text.strip_prefix(symbol).map_or(text, str::trim_start);
    let (units, decimals) = figures.split_once('.').unwrap_or((figures, ""));
    let mut groups = units.split(',');
    let first = groups.next().unwrap_or_default();
    // In `40,00` the comma does not separate thousands: 4,000 would be wrong.
    let has_thousands = (1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3);
    if figures.contains(',') && (!has_thousands || decimals.contains(',')) {
        return None;
    }
    currency.parse_amount(&figures.replace(',', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disputed_amount_can_be_copied_from_a_page() {
        for text in ["1,234.50", "$1,234.50", "$ 1234.5", "1234.50"] {
            assert_eq!(parse_amount(text, Currency::USD), Some(MinorUnits(123_450)), "{text}");
        }
        for text in ["", "$", "40,00", "1,2345", ",123", "1.234,50", "€5", "-5", "$-5"] {
            assert_eq!(parse_amount(text, Currency::USD), None, "{text}");
        }
    }
}
