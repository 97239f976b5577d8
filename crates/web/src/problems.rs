//! What is wrong with a form, field by field, in words for the person who filled it in.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's `id`.
    pub field: &'static str,
    pub text: String,
}

/// In the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub fn one(field: &'static str, text: impl Into<String>) -> Self {
        Self(vec![Problem { field, text: text.into() }])
    }

    pub fn add(&mut self, field: &'static str, text: impl Into<String>) {
        self.0.push(Problem { field, text: text.into() });
    }

    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// With one, the words at its field say enough.
    pub fn need_a_summary(&self) -> bool {
        self.0.len() > 1
    }

    pub fn of(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|problem| problem.field == field).map(|problem| problem.text.as_str())
    }

    /// The summary's heading.
    pub fn heading(&self) -> &'static str {
        match self.0.len() {
            0 | 1 => "One thing to put right",
            2 => "Two things to put right",
            3 => "Three things to put right",
            4 => "Four things to put right",
            _ => "Several things to put right",
        }
    }
}
