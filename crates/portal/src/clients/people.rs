//! The people whom a client may be given to, and by whom a list may be narrowed, for those who may know who is in the firm.
//!
//! Names of colleagues are no client's record: they are read without a permit and leave no row in the audit. A page offers them
//! to nobody else; what is done with one of them is decided, and written down, when it is done.

use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use chancery_domain::{Person, PersonId, PersonRef};

pub(super) struct Choice {
    pub(super) id: i64,
    pub(super) email: String,
    pub(super) is_chosen: bool,
    /// No longer in the portal: they keep what is theirs, and are given nothing.
    pub(super) is_former: bool,
}

/// Nobody for those who may not know who is in the firm.
pub(super) async fn known_to(portal: &Portal, who: &SignedIn) -> Result<Vec<Person>, PageError> {
    match who.capabilities(portal).read_team {
        true => Ok(portal.store.people.list_people().await?),
        false => Ok(Vec::new()),
    }
}

pub(super) fn choices(people: &[Person], chosen: Option<PersonId>) -> Vec<Choice> {
    let choice = |person: &Person| Choice {
        id: person.id.0,
        email: person.email.to_string(),
        is_chosen: Some(person.id) == chosen,
        is_former: false,
    };
    people.iter().map(choice).collect()
}

/// With the present owner chosen, who may have been removed: nobody else must look like the owner.
pub(super) fn choices_with_owner(people: &[Person], owner: &PersonRef) -> Vec<Choice> {
    let mut choices = choices(people, Some(owner.id));
    if !choices.iter().any(|choice| choice.is_chosen) {
        choices.insert(0, former(owner.id, owner.email.to_string()));
    }
    choices
}

/// With the one by whom a list is narrowed, who may have been removed: the next search must not forget them.
pub(super) async fn choices_with_filter(
    portal: &Portal,
    people: &[Person],
    filter: Option<PersonId>,
) -> Result<Vec<Choice>, PageError> {
    let mut choices = choices(people, filter);
    if let Some(id) = filter
        && !choices.is_empty()
        && !choices.iter().any(|choice| choice.is_chosen)
    {
        let removed = portal.store.people.list_removed_people().await?;
        let them = removed.into_iter().find(|removed| removed.person.id == id);
        choices.extend(them.map(|them| former(id, them.person.email.to_string())));
    }
    Ok(choices)
}

fn former(id: PersonId, email: String) -> Choice {
    Choice { id: id.0, email, is_chosen: true, is_former: true }
}
