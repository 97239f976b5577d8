//! The findings of a verification: the first ones as text, the rest as a count.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    pub reported: Vec<String>,
    /// Number of findings beyond the reported ones.
    pub more: u64,
    max_reported: usize,
}

impl Findings {
    pub(crate) fn with_limit(max_reported: usize) -> Self {
        Self { reported: Vec::new(), more: 0, max_reported }
    }

    pub fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }

    pub(crate) fn add(&mut self, finding: String) {
        if self.reported.len() < self.max_reported {
            self.reported.push(finding);
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
    fn first_findings_are_listed_and_the_rest_counted() {
        let mut found = Findings::with_limit(100);
        (0..105).for_each(|number| found.add(number.to_string()));
        assert_eq!((found.reported.len(), found.more), (100, 5));
        assert_eq!(found.reported[0], "0");
    }
}
