//! Every problem in a file, row by row, so that the user can fix all of them at once.

use std::fmt;

/// Number of problems shown; the others are only counted.
const MAX_REPORTED: usize = 50;

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
        self.push(row, format!("row {row}, `{field}`: {what}"));
    }

    /// Reports a problem with a whole row.
    pub fn row(&mut self, row: u64, what: impl fmt::Display) {
        self.push(row, format!("row {row}: {what}"));
    }

    fn push(&mut self, row: u64, message: String) {
        if self.all.len() < MAX_STORED {
            self.all.push(Problem { row, message });
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
    fn first_problems_are_listed_and_the_rest_counted() {
        let mut problems = Problems::default();
        (0..400).rev().for_each(|row| problems.field(row, "name", "it is wrong"));
        (400..1_000).for_each(|row| problems.row(row, "it is wrong"));
        let text = problems.to_string();
        assert!(text.starts_with("  row 0, `name`: it is wrong\n  row 1, "), "{text}");
        assert!(text.ends_with("row 49, `name`: it is wrong\n  and 950 more"), "{text}");
    }
}
