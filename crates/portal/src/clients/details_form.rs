//! The form for the name and details of a new or existing client.

use super::conflict::Conflict;
use crate::time_format::{DisplayTime, LocalTime};
use chancery_domain::{Client, ClientName, ContactDetails, ContactEmail, Day, Version, check_client_since};
use chancery_web::{Problems, capitalize};
use serde::Deserialize;

/// Submitted values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
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
    /// The name about which the user was warned, and wants to use all the same; only for a new client.
    pub(crate) create_anyway: String,
    /// `edit` if the user wants to go on editing after a conflict.
    pub(crate) resolve: String,
}

/// The form as shown on a page.
pub(crate) struct DetailsForm {
    pub(crate) typed: DetailsInput,
    pub(crate) problems: Problems,
    pub(crate) conflict: Option<Conflict>,
    pub(crate) is_unsaved: bool,
    /// When the restored text was stored.
    pub(crate) restored_at: Option<DisplayTime>,
}

impl DetailsInput {
    /// `local` says what day it is for the person. `stored` is the client's email address, which is accepted as it is.
    pub(super) fn read(
        &self,
        local: &LocalTime,
        stored: Option<&ContactEmail>,
    ) -> Result<(ClientName, ContactDetails), Problems> {
        let mut problems = Problems::default();
        let name: Option<ClientName> = problems.parse("name", &self.name, "Enter the client’s name");
        let contact = problems.parse("contact", &self.contact, "");
        let unchanged = stored.filter(|stored| stored.as_str() == self.email);
        let email = unchanged.cloned().or_else(|| problems.parse("email", &self.email, ""));
        let telephone = problems.parse("telephone", &self.telephone, "");
        let address = problems.parse("address", &self.address, "");
        let since = match self.since.trim() {
            "" => Ok(None),
            text => match text.parse::<Day>() {
                Ok(day) => check_client_since(day, local.today())
                    .map(Some)
                    .map_err(|error| capitalize(&error.to_string())),
                Err(_) => Err("Enter a date like 2024-03-04".to_owned()),
            },
        };
        let since = since.map_err(|text| problems.add("since", text)).ok();
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
    /// Whether the user must first see how both versions differ.
    pub(super) fn is_conflict(&self) -> bool {
        self.conflict.as_ref().is_some_and(|conflict| !conflict.is_merging)
    }

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
            create_anyway: String::new(),
            resolve: String::new(),
        };
        Self { typed, problems: Problems::default(), conflict: None, is_unsaved: false, restored_at: None }
    }

    pub(super) fn typed(typed: DetailsInput) -> Self {
        Self { typed, problems: Problems::default(), conflict: None, is_unsaved: true, restored_at: None }
    }

    /// The form with unsaved text from this time, unless that is the same.
    pub(super) fn restored(self, typed: DetailsInput, at: DisplayTime) -> Self {
        // Browsers send line breaks as CRLF.
        let address = typed.address.replace("\r\n", "\n");
        let typed = DetailsInput { address, ..typed };
        let is_same = DetailsInput { version: self.typed.version.clone(), ..typed.clone() } == self.typed;
        match is_same {
            true => self,
            false => Self { restored_at: Some(at), ..Self::typed(typed) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::UnixMillis;

    #[test]
    fn invalid_details_are_reported_per_field() {
        let typed = DetailsInput {
            email: "grace.abbotsmill.example".to_owned(),
            since: "4.3.2024".to_owned(),
            telephone: "1".repeat(201),
            ..DetailsInput::default()
        };
        let local = LocalTime::utc(UnixMillis(1_794_561_240_000));
        let problems = typed.read(&local, None).unwrap_err();
        let fields: Vec<_> = problems.0.iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["name", "email", "telephone", "since"]);
        assert_eq!(problems.of("name"), Some("Enter the client’s name"));
        assert_eq!(problems.of("telephone"), Some("Use at most 200 characters for this field; it has 201"));
        assert_eq!(problems.heading(), "Fix 4 problems");
        let typed = DetailsInput { name: " Calder ".to_owned(), ..DetailsInput::default() };
        assert_eq!(typed.read(&local, None).unwrap().0.as_str(), "Calder");
    }

    #[test]
    fn future_start_and_text_as_telephone_are_rejected_with_the_fix() {
        let local = LocalTime::utc(UnixMillis(1_794_561_240_000));
        let typed = DetailsInput {
            name: "Calder".to_owned(),
            since: "2099-01-01".to_owned(),
            telephone: "call me maybe".to_owned(),
            ..DetailsInput::default()
        };
        let problems = typed.read(&local, None).unwrap_err();
        assert!(problems.of("since").is_some_and(|text| text.contains("in the future")), "{problems:?}");
        assert!(
            problems.of("telephone").is_some_and(|text| text.contains("+1 617 555 0142")),
            "{problems:?}"
        );
        let typed = DetailsInput { since: "2026-11-13".to_owned(), telephone: "112".to_owned(), ..typed };
        assert!(typed.read(&local, None).is_ok(), "today is not the future");
    }
}
