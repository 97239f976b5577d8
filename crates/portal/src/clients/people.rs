//! The people whom a client may be given to, for those who may give one away.

use crate::failure::refused_by_store;
use crate::session::SignedIn;
use crate::state::Portal;
use chancery_domain::{Person, PersonId};
use chancery_pages::Refusal;
use chancery_policy::{ReadTeam, TheFirm};

pub(super) struct Choice {
    pub(super) id: i64,
    pub(super) email: String,
    pub(super) is_chosen: bool,
}

/// Nobody for those who may not know who is in the firm.
pub(super) async fn known_to(portal: &Portal, who: &SignedIn) -> Result<Vec<Person>, Refusal> {
    match portal.policy.would_allow::<ReadTeam>(who.asker(), TheFirm) {
        true => portal.store.list_people().await.map_err(|error| refused_by_store(&error)),
        false => Ok(Vec::new()),
    }
}

pub(super) fn choices(people: &[Person], chosen: Option<PersonId>) -> Vec<Choice> {
    let choice = |person: &Person| Choice {
        id: person.id.0,
        email: person.email.to_string(),
        is_chosen: Some(person.id) == chosen,
    };
    people.iter().map(choice).collect()
}
