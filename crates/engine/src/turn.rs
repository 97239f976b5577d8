//! What a prompt is made of: the turns of a conversation, in the order in which they were said.

/// The longest conversation, in turns. Whoever takes conversations in refuses longer ones.
pub const MAX_TURNS: usize = 1_024;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Says how to answer.
    System,
    User,
    /// What was answered before.
    Assistant,
}

impl Role {
    /// As chat templates name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
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

    /// The shortest conversation that has both: a job, and the material it runs on. Both turns are there even where a
    /// text is empty.
    pub fn instructions_and_input(instructions: impl Into<String>, input: impl Into<String>) -> Vec<Self> {
        vec![Self::system(instructions), Self::user(input)]
    }
}
