//! Resolves the email addresses in a file to people. A person's identity is issuer and subject, so an address that two people
//! share is ambiguous and resolves to neither. Removed people can still be authors, but not owners.

use chancery_domain::{EmailAddress, Person, PersonId};
use std::collections::HashMap;

/// `None` if several people share the address.
type ByAddress = HashMap<EmailAddress, Option<PersonId>>;

#[derive(Debug, Default)]
pub struct UsersByEmail {
    present: ByAddress,
    removed: ByAddress,
}

impl UsersByEmail {
    pub fn new(present: &[Person], removed: &[Person]) -> Self {
        let mut people = Self::default();
        present.iter().for_each(|person| people.add(person.email.clone(), person.id));
        removed.iter().for_each(|person| people.add_removed(person.email.clone(), person.id));
        people
    }

    pub fn add(&mut self, email: EmailAddress, id: PersonId) {
        insert(&mut self.present, email, id);
    }

    pub fn add_removed(&mut self, email: EmailAddress, id: PersonId) {
        insert(&mut self.removed, email, id);
    }

    /// Returns the person with this address, who must be able to own clients.
    pub fn owner(&self, text: &str) -> Result<PersonId, String> {
        let email: EmailAddress = text.trim().parse().map_err(|error| format!("{error}"))?;
        match self.present.get(&email) {
            Some(found) => found.ok_or_else(|| ambiguous_address(&email)),
            None if self.removed.contains_key(&email) => Err(format!(
                "{email} was removed; choose another owner, or run `chancery user restore {email}` first"
            )),
            None => Err(unknown_address(&email)),
        }
    }

    /// Returns the person with this address, present or removed. Present people take precedence.
    pub fn author(&self, text: &str) -> Result<PersonId, String> {
        let email: EmailAddress = text.trim().parse().map_err(|error| format!("{error}"))?;
        let found = self.present.get(&email).or_else(|| self.removed.get(&email));
        found.ok_or_else(|| unknown_address(&email))?.ok_or_else(|| ambiguous_address(&email))
    }
}

fn insert(people: &mut ByAddress, email: EmailAddress, id: PersonId) {
    people.entry(email).and_modify(|known| *known = None).or_insert(Some(id));
}

fn ambiguous_address(email: &EmailAddress) -> String {
    format!(
        "several users have the address {email}; remove the others (see `chancery user list`), or use another address"
    )
}

fn unknown_address(email: &EmailAddress) -> String {
    format!("no user with the address {email}; run `chancery user list` to see all users")
}
