//! Prevents CSV formula injection. A cell that a spreadsheet would treat as a formula gets a leading apostrophe, which marks it
//! as text. Reading removes it again. Every exported file uses this rule.
//!
//! Text with apostrophes before a formula start gets one more, so that reading returns exactly what was written.

use std::borrow::Cow;

/// Characters that start a formula in spreadsheets, in ASCII and full width. Tabs and line endings count too, because
/// spreadsheets skip them before a formula.
const FORMULA_STARTS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// The text as written into a cell. The CSV writer handles quotes and commas.
pub fn escape_csv_formula(text: &str) -> Cow<'_, str> {
    if looks_like_formula(text) { Cow::Owned(format!("'{text}")) } else { Cow::Borrowed(text) }
}

/// The inverse of `escape_csv_formula`.
pub fn unescape_csv_formula(cell: &str) -> &str {
    match cell.strip_prefix('\'') {
        Some(text) if looks_like_formula(text) => text,
        _ => cell,
    }
}

fn looks_like_formula(text: &str) -> bool {
    text.trim_start_matches('\'').starts_with(FORMULA_STARTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formula_cells_are_escaped() {
        for formula in ["=1+1", "+1 617 555 0142", "-2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1"] {
            assert_eq!(escape_csv_formula(formula), format!("'{formula}"));
        }
    }

    #[test]
    fn plain_cells_are_unchanged() {
        for text in ["", "Harbour Lane Bakery", "'t Hooft", "'", "O'Neil = 3", "12-14 Mill Road", " =1"] {
            assert_eq!(escape_csv_formula(text), text);
            assert_eq!(unescape_csv_formula(text), text);
        }
    }

    proptest! {
        #[test]
        fn escaped_cells_round_trip_and_are_never_formulas(
            text in "'{0,3}[-=+@\t\r\n＝x ]{0,2}\\PC{0,12}"
        ) {
            let cell = escape_csv_formula(&text);
            prop_assert!(!cell.starts_with(FORMULA_STARTS), "{cell:?}");
            prop_assert_eq!(unescape_csv_formula(&cell), text.as_str());
        }
    }
}
