//! The firm's letter templates.

pub(crate) mod letter_templates;
