//! How pages show people: by their name, or by their address if they have none. Two people with the same name are shown
//! with their addresses too. JSON and files have addresses only.

use crate::error::PageError;
use crate::state::Portal;
use chancery_domain::{EmailAddress, Person, PersonId, PersonRef};
use chancery_store::NamedPerson;
use std::collections::HashMap;

/// The names of everyone who has one.
pub(crate) struct PersonNames(HashMap<PersonId, Name>);

struct Name {
    text: String,
    /// Another person has the same name, or one that looks the same.
    is_shared: bool,
}

/// A person on a page. Templates show it with `people::person`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DisplayPerson {
    /// The name, with the address if the name is not unique; the address if there is no name.
    pub(crate) text: String,
    pub(crate) address: String,
    pub(crate) has_name: bool,
    /// Shown in a circle beside the name.
    pub(crate) initials: String,
}

/// The first letters of the first and the last word: `MC` for `Maya Chen` and for `maya.chen@example.com`.
pub(crate) fn initials(name: Option<&str>, email: &EmailAddress) -> String {
    let text = name.unwrap_or_else(|| email.as_str().split('@').next().unwrap_or_default());
    let words = text.split(|c: char| c.is_whitespace() || "._-+".contains(c));
    let letters: Vec<char> = words.filter_map(|word| word.chars().find(|c| c.is_alphanumeric())).collect();
    match letters.as_slice() {
        [] => String::new(),
        [only] => only.to_uppercase().collect(),
        [first, .., last] => [first, last].into_iter().flat_map(|letter| letter.to_uppercase()).collect(),
    }
}

impl PersonNames {
    pub(crate) async fn read(portal: &Portal) -> Result<Self, PageError> {
        Ok(Self::new(portal.store.people.list_names().await?))
    }

    fn new(people: Vec<NamedPerson>) -> Self {
        let mut uses: HashMap<String, u32> = HashMap::new();
        for person in &people {
            *uses.entry(person.name.folded()).or_default() += 1;
        }
        let name = |person: NamedPerson| {
            let is_shared = uses.get(&person.name.folded()).is_some_and(|uses| *uses > 1);
            (person.id, Name { text: person.name.to_string(), is_shared })
        };
        Self(people.into_iter().map(name).collect())
    }

    /// `Maya Chen`, `Maya Chen (maya@example.com)` if she is not the only one, or `maya@example.com`.
    pub(crate) fn text(&self, id: PersonId, email: &EmailAddress) -> String {
        match self.0.get(&id) {
            None => email.to_string(),
            Some(Name { text, is_shared: false }) => text.clone(),
            Some(Name { text, is_shared: true }) => format!("{text} ({email})"),
        }
    }

    /// `Maya Chen (maya@example.com)`, for choices and other places where a mix-up would do harm.
    pub(crate) fn full_text(&self, id: PersonId, email: &EmailAddress) -> String {
        match self.0.get(&id) {
            None => email.to_string(),
            Some(Name { text, .. }) => format!("{text} ({email})"),
        }
    }

    pub(crate) fn of_ref(&self, person: &PersonRef) -> DisplayPerson {
        self.display(person.id, &person.email)
    }

    pub(crate) fn of_person(&self, person: &Person) -> DisplayPerson {
        self.display(person.id, &person.email)
    }

    fn display(&self, id: PersonId, email: &EmailAddress) -> DisplayPerson {
        DisplayPerson {
            text: self.text(id, email),
            address: email.to_string(),
            has_name: self.0.contains_key(&id),
            initials: initials(self.0.get(&id).map(|name| name.text.as_str()), email),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: i64, name: &str) -> NamedPerson {
        NamedPerson { id: PersonId(id), name: name.parse().unwrap() }
    }

    #[test]
    fn equal_names_are_shown_with_their_addresses() {
        let names = PersonNames::new(vec![
            named(1, "Maya Chen"),
            named(2, "MAYA\u{200e} chen"),
            named(3, "Ruth Hale"),
        ]);
        let text = |id, email: &str| names.text(PersonId(id), &email.parse().unwrap());
        assert_eq!(text(1, "maya@example.com"), "Maya Chen (maya@example.com)");
        assert_eq!(text(2, "m.chen@example.com"), "MAYA\u{200e} chen (m.chen@example.com)");
        assert_eq!(text(3, "ruth@example.com"), "Ruth Hale");
        assert_eq!(text(4, "omar@example.com"), "omar@example.com");
        let ruth = PersonRef { id: PersonId(3), email: "ruth@example.com".parse().unwrap() };
        let shown = names.of_ref(&ruth);
        assert_eq!((shown.text.as_str(), shown.address.as_str()), ("Ruth Hale", "ruth@example.com"));
        assert_eq!(names.full_text(ruth.id, &ruth.email), "Ruth Hale (ruth@example.com)");
        assert_eq!(shown.initials, "RH");
    }

    #[test]
    fn initials_come_from_the_name_or_else_the_address() {
        let email: EmailAddress = "maya.chen@example.com".parse().unwrap();
        assert_eq!(initials(None, &email), "MC");
        for (name, expected) in
            [("Maya Chen", "MC"), ("Åsa O'Neil-Núñez", "ÅN"), ("ruth", "R"), ("山田太郎", "山"), ("(…)", "")]
        {
            assert_eq!(initials(Some(name), &email), expected, "{name}");
        }
    }
}
