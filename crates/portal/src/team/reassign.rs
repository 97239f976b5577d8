//! `POST /team/reassign`: moves the clients of one person, archived ones too, to another.
//!
//! 1. That the team may be changed is decided and on record first.
//! 2. Each client is asked about by itself; a single refusal, or a client that changes hands meanwhile, moves none.
//! 3. A request moves at most `MAX_MOVED` clients, all of them or none. Where more are left, the page says so and offers the
//!    next step.

use super::member::{manage, member};
use crate::authz::permits::MAX_RETRIES;
use crate::error::PageError;
use crate::error::no_such_colleague;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_policy::{ClientInQuestion, ListClients, ReassignClient, TheFirm};
use chancery_store::ClientError;
use chancery_web::{ErrorPage, Posted};
use std::sync::Arc;

/// Clients that one request moves: one transaction, which others wait for.
pub(crate) const MAX_MOVED: u32 = 500;

#[derive(serde::Deserialize)]
pub(crate) struct Move {
    from: i64,
    to: i64,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Posted<Move>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = manage(&portal, &signed_in).await?;
    portal.store.people.note_managing_team(permit).await?;
    let unclear = |_| ErrorPage::bad_form("It does not say whose clients (`from`) go to whom (`to`).");
    let Posted(Move { from, to }) = form.map_err(unclear)?;
    let (from, to) = (PersonId(from), PersonId(to));
    if from == to {
        return Err(ErrorPage::bad_form("`from` and `to` are the same person. Nothing was changed.").into());
    }
    member(&portal, to).await?;
    let moved = move_clients(&portal, &signed_in, from, to).await?;
    Ok(Redirect::to(&format!("/team?person={from}&done=moved&count={moved}&to={to}")).into_response())
}

async fn move_clients(
    portal: &Portal,
    who: &SignedIn,
    from: PersonId,
    to: PersonId,
) -> Result<u64, PageError> {
    let mut asked = 0;
    loop {
        let listing = portal.permit::<ListClients>(who, TheFirm).await?;
        let mut permits = Vec::new();
        for ownership in portal.store.clients.ownerships(&listing, Some(from), None, MAX_MOVED).await? {
            let about = ClientInQuestion { id: ownership.client, owner: Some(ownership.owner) };
            permits.push(portal.permit::<ReassignClient>(who, about).await?);
        }
        if permits.is_empty() {
            return Ok(0);
        }
        asked += 1;
        match portal.store.clients.reassign_clients(permits, to).await {
            Err(ClientError::OwnerChanged(_)) if asked < MAX_RETRIES => {}
            outcome => {
                return outcome.map_err(|error| match error {
                    ClientError::NoSuchPerson(_) => no_such_colleague().into(),
                    error => error.into(),
                });
            }
        }
    }
}
