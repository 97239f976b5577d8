//! What a verification has found: the first differences in words, the others as a number.

/// No findings means that everything agrees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    pub told: Vec<String>,
    /// How many more there are.
    pub more: u64,
    max_told: usize,
}

impl Findings {
    pub(crate) fn at_most(max_told: usize) -> Self {
        Self { told: Vec::new(), more: 0, max_told }
    }

    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    pub(crate) fn add(&mut self, finding: String) {
        if self.told.len() < self.max_told {
            self.told.push(finding);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn add_all(&mut self, findings: Vec<String>) {
        findings.into_iter().for_each(|finding| self.add(finding));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_findings_the_first_are_told_and_the_others_counted() {
        let mut found = Findings::at_most(100);
        (0..105).for_each(|number| found.add(number.to_string()));
        assert_eq!((found.told.len(), found.more), (100, 5));
        assert_eq!(found.told[0], "0");
    }
}
