//! The form of a letter template: typed values and problems.

use crate::error::PageError;
use crate::state::Portal;
use chancery_domain::{Placeholder, Version, check_template};
use chancery_policy::{ManageTemplates, Permit};
use chancery_store::{LetterTemplate, LetterTemplateContent};
use chancery_web::{ErrorPage, PostedForm, Problems, capitalize};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateInput {
    pub(crate) title: String,
    pub(crate) text: String,
    /// The version that the page showed; empty for a new template.
    pub(crate) version: String,
}

/// A placeholder as the form explains it.
pub(super) struct PlaceholderRow {
    pub(super) name: String,
    pub(super) description: &'static str,
}

impl TemplateInput {
    pub(super) fn of(template: &LetterTemplate) -> Self {
        Self {
            title: template.title.to_string(),
            text: template.text.to_string(),
            version: template.version.to_string(),
        }
    }

    pub(super) fn read(&self) -> Result<LetterTemplateContent, Problems> {
        let mut problems = Problems::default();
        let title = problems.parse("title", &self.title, "Enter a title");
        let text = problems.parse("text", &self.text, "Enter the text");
        for (field, typed) in [("title", &self.title), ("text", &self.text)] {
            if problems.of(field).is_none()
                && let Err(error) = check_template(typed)
            {
                problems.add(field, capitalize(&error.to_string()));
            }
        }
        match (title, text) {
            (Some(title), Some(text)) if !problems.any() => Ok(LetterTemplateContent { title, text }),
            _ => Err(problems),
        }
    }

    pub(super) fn read_version(&self) -> Option<Version> {
        self.version.parse().ok().map(Version)
    }
}

pub(super) fn placeholders() -> Vec<PlaceholderRow> {
    let row = |placeholder: Placeholder| PlaceholderRow {
        name: placeholder.to_string(),
        description: placeholder.description(),
    };
    Placeholder::ALL.into_iter().map(row).collect()
}

/// The submitted form. The decision is audited here if the form cannot be read, and else with the change.
pub(super) async fn audited_form(
    portal: &Portal,
    permit: Permit<ManageTemplates>,
    form: Result<PostedForm<TemplateInput>, ErrorPage>,
) -> Result<(Permit<ManageTemplates>, TemplateInput), PageError> {
    match form {
        Ok(PostedForm(typed)) => Ok((permit, typed)),
        Err(error) => {
            portal.store.letter_templates.record_template_decision(permit).await?;
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(title: &str, text: &str) -> Result<LetterTemplateContent, Problems> {
        TemplateInput { title: title.to_owned(), text: text.to_owned(), version: String::new() }.read()
    }

    #[test]
    fn unknown_placeholder_is_a_problem_of_its_field() {
        assert!(read("Thank you, {{client.contact}}", "Dear {{client.contact}}, {{today}}").is_ok());
        let problems = read("For {{client}}", "Dear {{client.nmae}}").unwrap_err();
        assert!(problems.of("title").is_some_and(|text| text.contains("{{client}}")), "{problems:?}");
        assert!(problems.of("text").is_some_and(|text| text.contains("{{client.nmae}}")), "{problems:?}");
        assert!(read("", "Dear").unwrap_err().of("title").is_some());
    }
}
