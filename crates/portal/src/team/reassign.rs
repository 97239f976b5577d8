//! `POST /team/reassign`: moves all clients of one person, including archived ones, to another. With `undo`, the time of a
//! reassignment, it gives its clients back to their former owners instead.
//!
//! 1. The permission to change the team is decided and audited first.
//! 2. Each client has its own decision, all with the same time. A single denial moves none. If a client gets another owner
//!    meanwhile, none is moved and all are decided again, in at most `MAX_RETRIES` attempts.
//! 3. A request moves at most `MAX_CLIENTS_PER_MOVE` clients, all of them or none, once their number is confirmed. If more
//!    are left, the page says so and offers to move the next ones.
//! 4. An undo skips clients that have had another owner since, and those whose former owner was removed.

use super::member::{member, permit_manage_team};
use super::row::pluralize;
use crate::authz::permits::MAX_RETRIES;
use crate::error::PageError;
use crate::error::person_not_found;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Person, PersonId, UnixMillis};
use chancery_policy::{ClientResource, FirmResource, ListClients, Permit, ReassignClient};
use chancery_store::{ClientError, ClientOwner};
use chancery_web::{Confirmation, Confirmed, ErrorPage, PostedForm};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Clients per request. They move in one transaction, which others wait for.
pub(crate) const MAX_CLIENTS_PER_MOVE: u32 = 500;

#[derive(serde::Deserialize)]
pub(crate) struct ReassignForm {
    from: Option<i64>,
    to: Option<i64>,
    #[serde(default)]
    confirmed: Confirmed,
    undo: Option<i64>,
}

/// What a request moves.
struct Batch {
    /// Each with its new owner.
    moves: Vec<(ClientOwner, PersonId)>,
    /// The page that says so, but for the number of clients and the time.
    done: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<ReassignForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    portal.store.people.record_team_management(permit).await?;
    let missing_person = || ErrorPage::invalid_form("`from` or `to` is missing. Choose the new owner.");
    let PostedForm(form) = form.map_err(|_| missing_person())?;
    let mut attempts = 0;
    loop {
        let listing = portal.permit::<ListClients>(&signed_in, FirmResource).await?;
        let batch = match (form.undo, form.from, form.to) {
            (Some(at), ..) => to_undo(&portal, &listing, UnixMillis(at)).await?,
            (None, Some(from), Some(to)) => {
                let (from, to) = (PersonId(from), PersonId(to));
                to_move(&portal, &listing, from, to, &form.confirmed).await?
            }
            _ => return Err(missing_person().into()),
        };
        let authz_request = signed_in.authz_request(&portal);
        let mut permits: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (ClientOwner { client, owner }, to) in batch.moves {
            let resource = ClientResource { id: client, owner: Some(owner) };
            let permit = portal.permit_at::<ReassignClient>(&authz_request, resource).await?;
            permits.entry(to).or_default().push(permit);
        }
        attempts += 1;
        match portal.store.clients.reassign_clients(permits).await {
            Err(ClientError::OwnerChanged(_) | ClientError::NoSuchPerson(_)) if attempts < MAX_RETRIES => {}
            Err(ClientError::NoSuchPerson(_)) => return Err(person_not_found().into()),
            Err(error) => return Err(error.into()),
            Ok(moved) => {
                let href = format!("{}&count={moved}&undo={}", batch.done, authz_request.at.0);
                return Ok(Redirect::to(&href).into_response());
            }
        }
    }
}

/// Clients of one person for another, if their number is confirmed.
async fn to_move(
    portal: &Portal,
    listing: &Permit<ListClients>,
    from: PersonId,
    to: PersonId,
    confirmed: &Confirmed,
) -> Result<Batch, PageError> {
    if from == to {
        return Err(ErrorPage::invalid_form(
            "`from` and `to` are the same person. Choose another owner. Nothing was changed.",
        )
        .into());
    }
    let new_owner = member(portal, to).await?;
    let owned = portal.store.clients.client_owners(listing, Some(from), None, MAX_CLIENTS_PER_MOVE).await?;
    let count = owned.len() as u64;
    if count > 0 && !confirmed.is(count) {
        return Err(confirmation(portal, from, &new_owner, count, confirmed).await?.into());
    }
    let moves = owned.into_iter().map(|owned| (owned, to)).collect();
    Ok(Batch { moves, done: format!("/team?person={from}&done=moved&to={to}") })
}

async fn confirmation(
    portal: &Portal,
    from: PersonId,
    to: &Person,
    count: u64,
    confirmed: &Confirmed,
) -> Result<ErrorPage, PageError> {
    let names = PersonNames::read(portal).await?;
    let removed = portal.store.people.list_removed_people().await?.into_iter().map(|removed| removed.person);
    let people = portal.store.people.list_people().await?;
    let owner = people.into_iter().chain(removed).find(|person| person.id == from);
    let owner = owner.ok_or_else(person_not_found)?;
    let clients = pluralize(count, "client");
    let [from_name, to_name] = [&owner, to].map(|person| names.full_text(person.id, &person.email));
    let reason = format!("This moves {clients} of {from_name} to {to_name}, archived ones included.");
    let change = Confirmation {
        changes: Vec::new(),
        count,
        action: "/team/reassign",
        fields: vec![("from", from.to_string()), ("to", to.id.to_string())],
        button: format!("Move {clients}"),
    };
    let more = if count == u64::from(MAX_CLIENTS_PER_MOVE) {
        format!(" Up to {MAX_CLIENTS_PER_MOVE} are moved at a time: repeat until all are.")
    } else {
        String::new()
    };
    Ok(ErrorPage::confirmation("Reassign all clients?", reason, confirmed, change)
        .advice(format!("It takes effect immediately. You can undo it afterwards.{more}"))
        .next_link(format!("/team?person={from}"), "Cancel"))
}

/// The clients of a reassignment, for their former owners.
async fn to_undo(portal: &Portal, listing: &Permit<ListClients>, at: UnixMillis) -> Result<Batch, PageError> {
    let found = portal.store.clients.reassigned_at(listing, at).await?;
    let Some(first) = found.first() else {
        return Err(ErrorPage::missing("Reassignment not found", "No clients were reassigned at this time.")
            .advice("Check `undo`. Nothing was changed.")
            .next_link("/team", "Go to team")
            .into());
    };
    let moves: Vec<_> =
        found.iter().filter(|past| past.can_undo).map(|past| (past.now, past.former_owner)).collect();
    let skipped = found.len() - moves.len();
    Ok(Batch { moves, done: format!("/team?person={}&done=returned&skipped={skipped}", first.former_owner) })
}
