//! The turns of a conversation, in order, from which a prompt is rendered.

/// Maximum length of a conversation, in turns. The API rejects longer ones.
pub const MAX_TURNS: usize = 1_024;

chancery_domain::closed_enum! {
    /// By the name in chat templates.
    pub enum Role {
        /// Instructions for the model.
        System = "system",
        User = "user",
        /// An earlier reply of the model.
        Assistant = "assistant",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub role: Role,
    pub text: String,
}

impl Turn {
    pub fn system(text: impl Into<String>) -> Self {
        Self { role: Role::System, text: text.into() }
    }

    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, text: text.into() }
    }

    pub fn assistant(text: impl Into<String>) -> Self {
        Self { role: Role::Assistant, text: text.into() }
    }

    /// A conversation of one system turn and one user turn. Both are present even if their text is empty.
    pub fn from_instructions_and_input(
        instructions: impl Into<String>,
        input: impl Into<String>,
    ) -> Vec<Self> {
        vec![Self::system(instructions), Self::user(input)]
    }
}
