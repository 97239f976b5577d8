//! Whom the addresses of a file mean. A person of the firm is known by issuer and subject; an address that two of them have
//! means neither. Those who have left can still have written what they wrote, but own nothing any more.

use chancery_domain::{EmailAddress, Person, PersonId};
use std::collections::HashMap;

/// None where several have the address.
type ByAddress = HashMap<EmailAddress, Option<PersonId>>;

#[derive(Debug, Default)]
pub struct PeopleByAddress {
    present: ByAddress,
    removed: ByAddress,
}

impl PeopleByAddress {
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

    /// The one who is meant and may own clients, or what is wrong with the address.
    pub fn owner(&self, text: &str) -> Result<PersonId, String> {
        let email: EmailAddress = text.trim().parse().map_err(|error| format!("{error}"))?;
        match self.present.get(&email) {
            Some(found) => found.ok_or_else(|| several(&email)),
            None if self.removed.contains_key(&email) => Err(format!(
                "{email} was removed from the firm and owns nothing any more; name somebody else, or `chancery user restore {email}` first"
            )),
            None => Err(unknown(&email)),
        }
    }

    /// The one who is meant, present or removed. Where somebody of today has the address of a former one, it means the former
    /// one no longer.
    pub fn author(&self, text: &str) -> Result<PersonId, String> {
        let email: EmailAddress = text.trim().parse().map_err(|error| format!("{error}"))?;
        let found = self.present.get(&email).or_else(|| self.removed.get(&email));
        found.ok_or_else(|| unknown(&email))?.ok_or_else(|| several(&email))
    }
}

fn insert(people: &mut ByAddress, email: EmailAddress, id: PersonId) {
    people.entry(email).and_modify(|known| *known = None).or_insert(Some(id));
}

fn several(email: &EmailAddress) -> String {
    format!(
        "several people have the address {email} (`chancery user list` shows them); remove those who are not meant, or name somebody else"
    )
}

fn unknown(email: &EmailAddress) -> String {
    format!(
        "nobody with the address {email} has signed in to the portal yet; `chancery user list` shows who has"
    )
}
