//! Whom the addresses of a file mean. A person of the firm is known by issuer and subject; an address that two of them have
//! means neither.

use chancery_domain::{EmailAddress, Person, PersonId};
use std::collections::HashMap;

#[derive(Debug, Default)]
pub struct PeopleByAddress {
    /// None where several have the address.
    present: HashMap<EmailAddress, Option<PersonId>>,
    removed: Vec<EmailAddress>,
}

impl PeopleByAddress {
    pub fn new(present: &[Person], removed: impl IntoIterator<Item = EmailAddress>) -> Self {
        let mut people = Self { removed: removed.into_iter().collect(), ..Self::default() };
        present.iter().for_each(|person| people.add(person.email.clone(), person.id));
        people
    }

    pub fn add(&mut self, email: EmailAddress, id: PersonId) {
        self.present.entry(email).and_modify(|known| *known = None).or_insert(Some(id));
    }

    /// The one who is meant, or what is wrong with the address.
    pub fn find(&self, text: &str) -> Result<PersonId, String> {
        let email: EmailAddress = text.trim().parse().map_err(|error| format!("{error}"))?;
        match self.present.get(&email) {
            Some(Some(id)) => Ok(*id),
            Some(None) => Err(format!(
                "several people have the address {email} (`chancery user list` shows them); remove those who are not meant"
            )),
            None if self.removed.contains(&email) => Err(format!(
                "{email} was removed from the firm; name somebody else, or `chancery user restore {email}` first"
            )),
            None => Err(format!(
                "nobody with the address {email} has signed in to the portal yet; `chancery user list` shows who has"
            )),
        }
    }
}
