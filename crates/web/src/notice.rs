//! What a page says about what just happened. A change redirects (303) to a page whose address says which change it was, so that
//! the page can be loaded again without doing it again.

pub struct Notice {
    pub strong: &'static str,
    pub text: String,
    pub link: Option<(String, &'static str)>,
    tone: Tone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tone {
    Good,
    Warning,
}

impl Notice {
    pub fn good(strong: &'static str, text: impl Into<String>) -> Self {
        Self { strong, text: text.into(), link: None, tone: Tone::Good }
    }

    /// Something that the person must know before they go on.
    pub fn warning(strong: &'static str, text: impl Into<String>) -> Self {
        Self { strong, text: text.into(), link: None, tone: Tone::Warning }
    }

    pub fn class(&self) -> &'static str {
        match self.tone {
            Tone::Good => "notice-good",
            Tone::Warning => "notice-warn",
        }
    }

    pub fn role(&self) -> &'static str {
        match self.tone {
            Tone::Good => "status",
            Tone::Warning => "alert",
        }
    }
}
