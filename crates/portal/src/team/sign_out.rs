//! `POST /team/sign-out`: ends all of somebody's sessions, their sign-ins under way, and their sessions at the built-in
//! identity provider, with which they would be let straight back in. For another provider that last part does nothing.

use super::{AboutSomebody, done, form_member, found, manage, refused};
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::state::Portal;
use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::Response;
use chancery_web::Refusal;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Form<AboutSomebody>, FormRejection>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &signed_in).await?;
    let unclear = |_| Refusal::bad_form("It does not say whose sessions are to end (`person`).");
    let read = form_member(&portal, form.map_err(unclear)).await;
    let (permit, person) = found(&portal, permit, read).await?;
    let at_provider = portal.store.end_provider_sessions_of(&person.identity.subject).await;
    at_provider.map_err(|error| refused(&error))?;
    portal.store.sign_out_person(permit, person.id).await.map_err(|error| refused(&error))?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::to_signed_out(),
        false => done(person.id, "signed-out"),
    })
}
