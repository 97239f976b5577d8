//! Everything that is wrong with a file, row by row, so that it can be put right in one go.

use std::fmt;

/// How many are told; of the others the number is enough.
const TOLD: usize = 50;

/// In the order in which they stand in the file. None means that the file can be imported.
#[derive(Debug, Default)]
pub struct Problems {
    all: Vec<Problem>,
    /// Those of later rows, once many have been found.
    more: u64,
}

#[derive(Debug)]
struct Problem {
    row: u64,
    words: String,
}

/// How many are held before later ones are only counted: enough that the first rows' are among them.
const HELD: usize = 10 * TOLD;

impl Problems {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn count(&self) -> u64 {
        self.all.len() as u64 + self.more
    }

    /// A field of a row is wrong: `what` says how, and what to do about it.
    pub fn field(&mut self, row: u64, field: &str, what: impl fmt::Display) {
        self.push(row, format!("row {row}, `{field}`: {what}"));
    }

    /// A whole row is wrong.
    pub fn row(&mut self, row: u64, what: impl fmt::Display) {
        self.push(row, format!("row {row}: {what}"));
    }

    fn push(&mut self, row: u64, words: String) {
        if self.all.len() < HELD {
            self.all.push(Problem { row, words });
        } else {
            self.more += 1;
        }
    }

    fn told(&self) -> Vec<&str> {
        let mut in_order: Vec<&Problem> = self.all.iter().collect();
        in_order.sort_by_key(|problem| problem.row);
        in_order.into_iter().take(TOLD).map(|problem| problem.words.as_str()).collect()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.told();
        for (place, words) in told.iter().enumerate() {
            let end = if place + 1 < told.len() { "\n" } else { "" };
            write!(f, "  {words}{end}")?;
        }
        match self.count() - told.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_problems_the_first_rows_are_told_and_the_others_counted() {
        let mut problems = Problems::default();
        (0..400).rev().for_each(|row| problems.field(row, "name", "it is wrong"));
        (400..1_000).for_each(|row| problems.row(row, "it is wrong"));
        let text = problems.to_string();
        assert!(text.starts_with("  row 0, `name`: it is wrong\n  row 1, "), "{text}");
        assert!(text.ends_with("row 49, `name`: it is wrong\n  and 950 more"), "{text}");
    }
}
