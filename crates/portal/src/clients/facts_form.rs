//! The form of a client's name and facts: for a new client, and for one that is there.

use super::conflict::Conflict;
use chancery_domain::{Client, ClientName, ContactFacts, Day, Version};
use chancery_web::Problems;
use serde::Deserialize;

/// As typed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FactsTyped {
    pub(crate) name: String,
    pub(crate) contact: String,
    pub(crate) email: String,
    pub(crate) telephone: String,
    pub(crate) address: String,
    /// `2024-03-04`, or nothing.
    pub(crate) since: String,
    /// The one that was on the page; empty for a new client.
    pub(crate) version: String,
    /// A person's number; only for a new client. Empty: whoever sends it.
    pub(crate) owner: String,
}

/// The form as a page shows it.
pub(crate) struct FactsForm {
    pub(crate) typed: FactsTyped,
    pub(crate) problems: Problems,
    pub(crate) conflict: Option<Conflict>,
    pub(crate) is_unsaved: bool,
}

impl FactsTyped {
    pub(super) fn read(&self) -> Result<(ClientName, ContactFacts), Problems> {
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
            problems.add("since", "Write the day like 2024-03-04");
        }
        match (name, contact, email, telephone, address, since) {
            (Some(name), Some(contact), Some(email), Some(telephone), Some(address), Some(since)) => {
                Ok((name, ContactFacts { contact, email, telephone, address, since }))
            }
            _ => Err(problems),
        }
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.version.parse().ok().map(Version)
    }
}

impl FactsForm {
    pub(super) fn of(client: &Client) -> Self {
        let ContactFacts { contact, email, telephone, address, since } = &client.facts;
        let typed = FactsTyped {
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

    pub(super) fn typed(typed: FactsTyped) -> Self {
        Self { typed, problems: Problems::default(), conflict: None, is_unsaved: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_is_wrong_is_named_with_what_to_do() {
        let typed = FactsTyped {
            email: "grace.abbotsmill.example".to_owned(),
            since: "4.3.2024".to_owned(),
            telephone: "1".repeat(201),
            ..FactsTyped::default()
        };
        let problems = typed.read().unwrap_err();
        let fields: Vec<_> = problems.0.iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["name", "email", "telephone", "since"]);
        assert_eq!(problems.of("name"), Some("Enter the client’s name"));
        assert_eq!(problems.of("telephone"), Some("This fact has 201 characters; 200 at most"));
        assert_eq!(problems.heading(), "Four things to put right");
        let typed = FactsTyped { name: " Calder ".to_owned(), ..FactsTyped::default() };
        assert_eq!(typed.read().unwrap().0.as_str(), "Calder");
    }
}
