//! The form for the name and details of a new or existing client.

use super::conflict::Conflict;
use chancery_domain::{Client, ClientName, ContactDetails, Day, Version};
use chancery_web::Problems;
use serde::Deserialize;

/// Submitted values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DetailsInput {
    pub(crate) name: String,
    pub(crate) contact: String,
    pub(crate) email: String,
    pub(crate) telephone: String,
    pub(crate) address: String,
    /// `2024-03-04`, or empty.
    pub(crate) since: String,
    /// The version that the page showed; empty for a new client.
    pub(crate) version: String,
    /// A person's number; only for a new client. Empty means the user.
    pub(crate) owner: String,
}

/// The form as shown on a page.
pub(crate) struct DetailsForm {
    pub(crate) typed: DetailsInput,
    pub(crate) problems: Problems,
    pub(crate) conflict: Option<Conflict>,
    pub(crate) is_unsaved: bool,
}

impl DetailsInput {
    pub(super) fn read(&self) -> Result<(ClientName, ContactDetails), Problems> {
        let mut problems = Problems::default();
        let name: Option<ClientName> = problems.parse("name", &self.name, "Enter the client’s name");
        let contact = problems.parse("contact", &self.contact, "");
        let email = problems.parse("email", &self.email, "");
        let telephone = problems.parse("telephone", &self.telephone, "");
        let address = problems.parse("address", &self.address, "");
        let since = match self.since.trim() {
            "" => Some(None),
            text => text.parse::<Day>().ok().map(Some),
        };
        if since.is_none() {
            problems.add("since", "Enter a date like 2024-03-04");
        }
        match (name, contact, email, telephone, address, since) {
            (Some(name), Some(contact), Some(email), Some(telephone), Some(address), Some(since)) => {
                Ok((name, ContactDetails { contact, email, telephone, address, since }))
            }
            _ => Err(problems),
        }
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.version.parse().ok().map(Version)
    }
}

impl DetailsForm {
    pub(super) fn of(client: &Client) -> Self {
        let ContactDetails { contact, email, telephone, address, since } = &client.details;
        let typed = DetailsInput {
            name: client.name.to_string(),
            contact: contact.to_string(),
            email: email.to_string(),
            telephone: telephone.to_string(),
            address: address.to_string(),
            since: since.map_or_else(String::new, |day| day.to_string()),
            version: client.version.to_string(),
            owner: String::new(),
        };
        Self { typed, problems: Problems::default(), conflict: None, is_unsaved: false }
    }

    pub(super) fn typed(typed: DetailsInput) -> Self {
        Self { typed, problems: Problems::default(), conflict: None, is_unsaved: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_details_are_reported_per_field() {
        let typed = DetailsInput {
            email: "grace.abbotsmill.example".to_owned(),
            since: "4.3.2024".to_owned(),
            telephone: "1".repeat(201),
            ..DetailsInput::default()
        };
        let problems = typed.read().unwrap_err();
        let fields: Vec<_> = problems.0.iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["name", "email", "telephone", "since"]);
        assert_eq!(problems.of("name"), Some("Enter the client’s name"));
        assert_eq!(problems.of("telephone"), Some("Use at most 200 characters for this field; it has 201"));
        assert_eq!(problems.heading(), "Fix 4 problems");
        let typed = DetailsInput { name: " Calder ".to_owned(), ..DetailsInput::default() };
        assert_eq!(typed.read().unwrap().0.as_str(), "Calder");
    }
}
