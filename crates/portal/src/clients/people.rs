//! The people to whom a client can be reassigned and by whom the list can be filtered, for users who may see the team.
//!
//! Names of colleagues are not part of a record: they are read without a permit and leave no audit row. What is done with a
//! chosen person is decided and audited when it happens.

use crate::error::PageError;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use chancery_domain::{Person, PersonId, PersonRef};

pub(super) struct OwnerChoice {
    pub(super) id: i64,
    /// Name and address.
    pub(super) label: String,
    pub(super) is_selected: bool,
    /// Removed from the portal: still owns existing clients but cannot receive any.
    pub(super) is_removed: bool,
}

/// Empty for users who may not see the team.
pub(super) async fn visible_people(portal: &Portal, signed_in: &SignedIn) -> Result<Vec<Person>, PageError> {
    match signed_in.capabilities(portal).read_team {
        true => Ok(portal.store.people.list_people().await?),
        false => Ok(Vec::new()),
    }
}

pub(super) fn choices(people: &[Person], names: &PersonNames, chosen: Option<PersonId>) -> Vec<OwnerChoice> {
    let choice = |person: &Person| OwnerChoice {
        id: person.id.0,
        label: names.full_text(person.id, &person.email),
        is_selected: Some(person.id) == chosen,
        is_removed: false,
    };
    people.iter().map(choice).collect()
}

/// Includes the current owner as selected even if removed, so that nobody else appears to be the owner.
pub(super) fn choices_with_owner(
    people: &[Person],
    names: &PersonNames,
    owner: &PersonRef,
) -> Vec<OwnerChoice> {
    let mut choices = choices(people, names, Some(owner.id));
    if !choices.iter().any(|choice| choice.is_selected) {
        choices.insert(0, removed_choice(owner.id, names.full_text(owner.id, &owner.email)));
    }
    choices
}

/// Includes the person in the filter even if removed, so that the next search keeps the filter.
pub(super) async fn choices_with_filter(
    portal: &Portal,
    people: &[Person],
    names: &PersonNames,
    filter: Option<PersonId>,
) -> Result<Vec<OwnerChoice>, PageError> {
    let mut choices = choices(people, names, filter);
    if let Some(id) = filter
        && !choices.is_empty()
        && !choices.iter().any(|choice| choice.is_selected)
    {
        let removed = portal.store.people.list_removed_people().await?;
        let owner = removed.into_iter().find(|removed| removed.person.id == id);
        choices.extend(owner.map(|owner| removed_choice(id, names.full_text(id, &owner.person.email))));
    }
    Ok(choices)
}

fn removed_choice(id: PersonId, label: String) -> OwnerChoice {
    OwnerChoice { id: id.0, label, is_selected: true, is_removed: true }
}
