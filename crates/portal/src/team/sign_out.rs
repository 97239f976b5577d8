//! `POST /team/sign-out`: ends all of somebody's sessions, their sign-ins under way, and their sessions at the built-in
//! identity provider, with which they would be let straight back in. For another provider that last part does nothing.

use super::member::{AboutSomebody, done, manage, member};
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::PersonId;
use chancery_web::{ErrorPage, Posted};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Posted<AboutSomebody>, ErrorPage>,
) -> Result<Response, PageError> {
    manage(&portal, &signed_in).await?;
    let unclear = |_| ErrorPage::bad_form("It does not say whose sessions are to end (`person`).");
    let Posted(AboutSomebody { person }) = form.map_err(unclear)?;
    let person = member(&portal, PersonId(person)).await?;
    let identity = &person.identity;
    portal.store.end_provider_sessions_of(&identity.subject).await?;
    portal.store.end_sessions_of_identity(identity).await?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::to_signed_out(),
        false => done(person.id, "signed-out"),
    })
}
