//! Confirmation messages. A change redirects (303) to a page whose URL names the change, so that a reload does not repeat it.

pub struct Notice {
    pub title: &'static str,
    pub text: String,
    pub link: Option<(String, &'static str)>,
    pub form: Option<NoticeForm>,
    kind: NoticeKind,
}

/// A button in a message, such as Undo. It works without scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeForm {
    pub action: String,
    pub label: &'static str,
    /// Hidden fields.
    pub fields: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NoticeKind {
    Good,
    Warning,
}

impl Notice {
    pub fn success(title: &'static str, text: impl Into<String>) -> Self {
        Self { title, text: text.into(), link: None, form: None, kind: NoticeKind::Good }
    }

    /// Something that the user must know before continuing.
    pub fn warning(title: &'static str, text: impl Into<String>) -> Self {
        Self { title, text: text.into(), link: None, form: None, kind: NoticeKind::Warning }
    }

    pub fn class(&self) -> &'static str {
        match self.kind {
            NoticeKind::Good => "notice-good",
            NoticeKind::Warning => "notice-warn",
        }
    }

    pub fn role(&self) -> &'static str {
        match self.kind {
            NoticeKind::Good => "status",
            NoticeKind::Warning => "alert",
        }
    }
}
