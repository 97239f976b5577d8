//! Prevents CSV formula injection. Text that a spreadsheet would treat as a formula gets an apostrophe in front, which marks it
//! as text. Reading removes it again. Every exported file uses this rule.
//!
//! Not only the start of a cell counts. A spreadsheet whose list separator is not the comma, as in much of Europe, splits our
//! lines at semicolons or tabs, and reads quotes within them as ordinary characters. A line break then ends a row even in a
//! quoted cell. So each part of the text that may become a cell of its own is treated like a cell.
//!
//! Text with apostrophes before a formula start gets one more, so that reading returns exactly what was written.

use std::borrow::Cow;

/// Characters that start a formula in spreadsheets, in ASCII and full width.
const FORMULA_STARTS: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// Spreadsheets skip these at the start of a cell, before a formula.
const SKIPPED_STARTS: [char; 3] = ['\t', '\r', '\n'];

/// Where a spreadsheet may begin another cell within the text. Commas are missing because the CSV writer quotes them, and where
/// the quotes have no effect, commas do not separate cells.
const SEPARATORS: [char; 4] = [';', '\t', '\r', '\n'];

/// May stand between a separator and the formula: apostrophes of earlier escapes, and the CSV writer's quotes.
const MARKS: [char; 2] = ['\'', '"'];

/// The text as written into a cell. The CSV writer handles quotes and commas.
pub fn escape_csv_formula(text: &str) -> Cow<'_, str> {
    let (mut cell, mut copied) = (String::new(), 0);
    for start in part_starts(text).filter(|start| is_formula(*start, &text[*start..])) {
        cell.push_str(&text[copied..start]);
        cell.push('\'');
        copied = start;
    }
    if cell.is_empty() {
        return Cow::Borrowed(text);
    }
    cell.push_str(&text[copied..]);
    Cow::Owned(cell)
}

/// The inverse of `escape_csv_formula`.
pub fn unescape_csv_formula(cell: &str) -> Cow<'_, str> {
    let (mut text, mut copied) = (String::new(), 0);
    for start in part_starts(cell) {
        match cell[start..].strip_prefix('\'') {
            Some(part) if is_formula(start, part) => {
                text.push_str(&cell[copied..start]);
                copied = start + 1;
            }
            _ => {}
        }
    }
    match copied {
        0 => Cow::Borrowed(cell),
        _ => {
            text.push_str(&cell[copied..]);
            Cow::Owned(text)
        }
    }
}

/// Where the text and each part after a separator begin.
fn part_starts(text: &str) -> impl Iterator<Item = usize> + '_ {
    let after = text.match_indices(SEPARATORS).map(|(at, separator)| at + separator.len());
    std::iter::once(0).chain(after)
}

/// Whether a part that begins here is a formula. `rest` is the text from there on, or what an escape marks.
fn is_formula(start: usize, rest: &str) -> bool {
    let part = rest.trim_start_matches(MARKS);
    // Elsewhere, what follows a skipped character is a part of its own.
    part.starts_with(FORMULA_STARTS) || (start == 0 && part.starts_with(SKIPPED_STARTS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formula_cells_are_escaped() {
        for formula in ["=1+1", "+1 617 555 0142", "-2", "@SUM(A1)", "＝1+1", "\t", "\"=1\""] {
            assert_eq!(escape_csv_formula(formula), format!("'{formula}"));
        }
        for (formula, escaped) in [("\t=1", "'\t'=1"), ("\r=1", "'\r'=1"), ("\n=1", "'\n'=1")] {
            assert_eq!(escape_csv_formula(formula), escaped);
        }
    }

    #[test]
    fn formulas_after_semicolon_tab_and_line_break_are_escaped() {
        for (formula, escaped) in [
            ("Mill;=HYPERLINK(\"http://evil.example\")", "Mill;'=HYPERLINK(\"http://evil.example\")"),
            ("Mill\t@SUM(A1)", "Mill\t'@SUM(A1)"),
            ("Mill;\t+1", "Mill;\t'+1"),
            ("Mill;\"=1\"", "Mill;'\"=1\""),
            ("Mill;'=1", "Mill;''=1"),
            ("Mill\n=1\r\n-2;＝3", "Mill\n'=1\r\n'-2;'＝3"),
            (";=1", ";'=1"),
        ] {
            assert_eq!(escape_csv_formula(formula), escaped);
            assert_eq!(unescape_csv_formula(escaped), formula);
        }
    }

    #[test]
    fn plain_cells_are_unchanged() {
        for text in [
            "",
            "Harbour Lane Bakery",
            "'t Hooft",
            "'",
            "O'Neil = 3",
            "12-14 Mill Road",
            " =1",
            "two; three",
            "first\n\nsecond;'t Hooft\tthird",
            "a, -b",
        ] {
            assert_eq!(escape_csv_formula(text), text);
            assert_eq!(unescape_csv_formula(text), text);
        }
    }

    proptest! {
        #[test]
        fn escaped_cells_round_trip_and_are_never_formulas(
            text in "['\"]{0,3}[-=+@;\t\r\n＝x ]{0,3}['\"]{0,2}[-=+@;\t\r\n＝x ]{0,3}\\PC{0,12}"
        ) {
            let cell = escape_csv_formula(&text);
            prop_assert!(!cell.starts_with(SKIPPED_STARTS), "{cell:?}");
            for part in cell.split(SEPARATORS) {
                prop_assert!(!part.trim_start_matches('"').starts_with(FORMULA_STARTS), "{cell:?}");
            }
            prop_assert_eq!(unescape_csv_formula(&cell), text.as_str());
        }
    }
}
