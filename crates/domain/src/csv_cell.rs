//! Cells of CSV files that spreadsheets open: a cell that would be taken for a formula is marked as text, by an apostrophe
//! before it, and the mark is taken off again where such a file is read. One rule for every file that leaves.
//!
//! What begins with apostrophes and then like a formula gets one more, so that reading gives back exactly what was written.

use std::borrow::Cow;

/// What spreadsheets take for the beginning of a formula, in their own and in full width; they skip a tab or the end of a
/// line before it.
const FORMULA_STARTS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// The text as it is written into a cell. Quotes and commas are the CSV writer's part.
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    if looks_like_formula(text) { Cow::Owned(format!("'{text}")) } else { Cow::Borrowed(text) }
}

/// The text that is meant by a cell.
pub fn from_csv_cell(cell: &str) -> &str {
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
    fn a_formula_is_marked_as_text() {
        for formula in ["=1+1", "+1 617 555 0142", "-2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1"] {
            assert_eq!(csv_cell(formula), format!("'{formula}"));
        }
    }

    #[test]
    fn what_is_no_formula_stays_as_it_is() {
        for text in ["", "Harbour Lane Bakery", "'t Hooft", "'", "O'Neil = 3", "12-14 Mill Road", " =1"] {
            assert_eq!(csv_cell(text), text);
            assert_eq!(from_csv_cell(text), text);
        }
    }

    proptest! {
        #[test]
        fn a_cell_never_begins_like_a_formula_and_gives_back_its_text(
            text in "'{0,3}[-=+@\t\r\n＝x ]{0,2}\\PC{0,12}"
        ) {
            let cell = csv_cell(&text);
            prop_assert!(!cell.starts_with(FORMULA_STARTS), "{cell:?}");
            prop_assert_eq!(from_csv_cell(&cell), text);
        }
    }
}
