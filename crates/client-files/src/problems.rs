//! Every problem in a file, row by row, so that the user can fix all of them at once.

use chancery_domain::closest_match;
use std::fmt;

/// Number of problems shown; the others are only counted.
const MAX_REPORTED: usize = 50;

/// Characters of a field's name and of a whole problem. What they quote can be as long as the file.
const MAX_FIELD_CHARS: usize = 80;
const MAX_MESSAGE_CHARS: usize = 400;

/// Displayed in row order. If empty, the file can be imported.
#[derive(Debug, Default)]
pub struct Problems {
    all: Vec<Problem>,
    /// Problems found after `MAX_STORED` was reached.
    more: u64,
}

#[derive(Debug)]
struct Problem {
    row: u64,
    message: String,
}

/// Number of problems stored before further ones are only counted. Larger than `MAX_REPORTED` because they are not found in row order.
const MAX_STORED: usize = 10 * MAX_REPORTED;

impl Problems {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn count(&self) -> u64 {
        self.all.len() as u64 + self.more
    }

    /// Reports an invalid field. `what` says what is wrong and how to fix it.
    pub fn field(&mut self, row: u64, field: &str, what: impl fmt::Display) {
        self.push(row, &format!("row {row}, `{}`: {what}", printable(field, MAX_FIELD_CHARS)));
    }

    /// Reports a field that is not one of the known, and suggests the nearest. Comparing takes time, so no more than are stored.
    pub fn unknown_field(&mut self, row: u64, prefix: &str, name: &str, known: &[&str]) {
        if self.all.len() >= MAX_STORED {
            self.more += 1;
            return;
        }
        let what = match closest_match(name, known.iter().copied()) {
            Some(meant) => format!("unknown field; did you mean `{meant}`?"),
            None => format!("unknown field; known fields: {}", known.join(", ")),
        };
        self.field(row, &format!("{prefix}{name}"), what);
    }

    /// Reports a problem with a whole row.
    pub fn row(&mut self, row: u64, what: impl fmt::Display) {
        self.push(row, &format!("row {row}: {what}"));
    }

    fn push(&mut self, row: u64, message: &str) {
        if self.all.len() < MAX_STORED {
            self.all.push(Problem { row, message: printable(message, MAX_MESSAGE_CHARS) });
        } else {
            self.more += 1;
        }
    }

    fn reported(&self) -> Vec<&str> {
        let mut in_order: Vec<&Problem> = self.all.iter().collect();
        in_order.sort_by_key(|problem| problem.row);
        in_order.into_iter().take(MAX_REPORTED).map(|problem| problem.message.as_str()).collect()
    }
}

/// Makes one line of it. Problems quote the file, and a terminal obeys control characters.
fn printable(text: &str, max_chars: usize) -> String {
    let shown = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    let mut line: String = text.chars().take(max_chars).map(shown).collect();
    if text.chars().nth(max_chars).is_some() {
        line.push('…');
    }
    line
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reported = self.reported();
        for (index, message) in reported.iter().enumerate() {
            let end = if index + 1 < reported.len() { "\n" } else { "" };
            write!(f, "  {message}{end}")?;
        }
        match self.count() - reported.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_one_short_line_without_control_characters() {
        let mut problems = Problems::default();
        problems.field(1, "\u{1b}[2J\nname", "unknown field");
        problems.field(2, &"n".repeat(100_000), "unknown field");
        let text = problems.to_string();
        assert!(
            text.starts_with("  row 1, `\u{fffd}[2J\u{fffd}name`: unknown field\n  row 2, `nnn"),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with("n…`: unknown field") && text.chars().count() < 200, "{text:?}");
    }

    #[test]
    fn first_problems_are_listed_and_the_rest_counted() {
        let mut problems = Problems::default();
        (0..400).rev().for_each(|row| problems.field(row, "name", "it is wrong"));
        (400..1_000).for_each(|row| problems.row(row, "it is wrong"));
        let text = problems.to_string();
        assert!(text.starts_with("  row 0, `name`: it is wrong\n  row 1, "), "{text}");
        assert!(text.ends_with("row 49, `name`: it is wrong\n  and 950 more"), "{text}");
    }
}
