//! `POST /team/sign-out`: ends all of somebody's sessions, their sign-ins under way, and their sessions at the built-in
//! identity provider, with which they would be let straight back in. For another provider that last part does nothing.

use super::member::{AboutSomebody, allowed_form, done, form_member, manage};
use crate::error::{PageError, about_colleague};
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_web::{ErrorPage, Posted};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Posted<AboutSomebody>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = manage(&portal, &signed_in).await?;
    let unclear = |_| ErrorPage::bad_form("It does not say whose sessions are to end (`person`).");
    let read = form_member(&portal, form.map_err(unclear)).await;
    let (permit, person) = allowed_form(&portal, permit, read).await?;
    portal.store.session_revoker.end_provider_sessions_of(&person.identity.subject).await?;
    portal.store.people.sign_out_person(permit, person.id).await.map_err(about_colleague)?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::to_signed_out(),
        false => done(person.id, "signed-out"),
    })
}
