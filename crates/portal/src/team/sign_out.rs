//! `POST /team/sign-out`: ends all of a person's sessions, their pending sign-ins, and their sessions at the built-in identity
//! provider, which would let them straight back in. For another provider that last part does nothing.

use super::member::{PersonForm, audited_form, done, member_from_form, permit_manage_team};
use crate::error::{PageError, colleague_error};
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    let missing_person = |_| ErrorPage::invalid_form("`person` is missing.");
    let read = member_from_form(&portal, form.map_err(missing_person)).await;
    let (permit, person) = audited_form(&portal, permit, read).await?;
    portal.store.session_revoker.end_provider_sessions(&person.identity.subject).await?;
    portal.store.people.sign_out_person(permit, person.id).await.map_err(colleague_error)?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::redirect_to_signed_out(&portal),
        false => done(person.id, "signed-out"),
    })
}
