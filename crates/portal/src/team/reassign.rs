//! `POST /team/reassign`: moves all clients of one person, including archived ones, to another.
//!
//! 1. The permission to change the team is decided and audited first.
//! 2. Each client has its own decision. A single denial moves none. If a client gets another owner meanwhile, none is moved and
//!    all are decided again, in at most `MAX_RETRIES` attempts.
//! 3. A request moves at most `MAX_CLIENTS_PER_MOVE` clients, all of them or none. If more are left, the page says so and offers to
//!    move the next ones.

use super::member::{member, permit_manage_team};
use crate::authz::permits::MAX_RETRIES;
use crate::error::PageError;
use crate::error::person_not_found;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_policy::{ClientResource, FirmResource, ListClients, ReassignClient};
use chancery_store::ClientError;
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

/// Clients per request. They move in one transaction, which others wait for.
pub(crate) const MAX_CLIENTS_PER_MOVE: u32 = 500;

#[derive(serde::Deserialize)]
pub(crate) struct ReassignForm {
    from: i64,
    to: i64,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<ReassignForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    portal.store.people.record_team_management(permit).await?;
    let missing_person = |_| ErrorPage::invalid_form("`from` or `to` is missing. Choose the new owner.");
    let PostedForm(ReassignForm { from, to }) = form.map_err(missing_person)?;
    let (from, to) = (PersonId(from), PersonId(to));
    if from == to {
        return Err(ErrorPage::invalid_form(
            "`from` and `to` are the same person. Choose another owner. Nothing was changed.",
        )
        .into());
    }
    member(&portal, to).await?;
    let moved = move_clients(&portal, &signed_in, from, to).await?;
    Ok(Redirect::to(&format!("/team?person={from}&done=moved&count={moved}&to={to}")).into_response())
}

async fn move_clients(
    portal: &Portal,
    signed_in: &SignedIn,
    from: PersonId,
    to: PersonId,
) -> Result<u64, PageError> {
    let mut attempts = 0;
    loop {
        let listing = portal.permit::<ListClients>(signed_in, FirmResource).await?;
        let mut permits = Vec::new();
        for ownership in
            portal.store.clients.client_owners(&listing, Some(from), None, MAX_CLIENTS_PER_MOVE).await?
        {
            let resource = ClientResource { id: ownership.client, owner: Some(ownership.owner) };
            permits.push(portal.permit::<ReassignClient>(signed_in, resource).await?);
        }
        if permits.is_empty() {
            return Ok(0);
        }
        attempts += 1;
        match portal.store.clients.reassign_clients(permits, to).await {
            Err(ClientError::OwnerChanged(_)) if attempts < MAX_RETRIES => {}
            outcome => {
                return outcome.map_err(|error| match error {
                    ClientError::NoSuchPerson(_) => person_not_found().into(),
                    error => error.into(),
                });
            }
        }
    }
}
