//! `POST /team/remove` takes somebody out of the portal: their sessions end, and signing in is refused. Their clients stay
//! theirs until a partner moves them. `POST /team/restore` lets them in again, in the role they had.

use super::member::{AboutSomebody, allowed_form, done, form_member, manage};
use crate::error::{PageError, about_colleague};
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
    let permit = manage(&portal, &signed_in).await?;
    let read = form_member(&portal, form.map_err(unclear)).await;
    let (permit, person) = allowed_form(&portal, permit, read).await?;
    portal.store.people.remove_person(permit, person.id).await.map_err(about_colleague)?;
    portal.store.session_revoker.end_provider_sessions_of(&person.identity.subject).await?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::to_signed_out(),
        false => done(person.id, "removed"),
    })
}

pub(crate) async fn restore(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Posted<AboutSomebody>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = manage(&portal, &signed_in).await?;
    let read = form.map_err(|error| unclear(error).into());
    let (permit, Posted(AboutSomebody { person })) = allowed_form(&portal, permit, read).await?;
    let person =
        portal.store.people.restore_person(permit, PersonId(person)).await.map_err(about_colleague)?;
    Ok(done(person.id, "restored"))
}

fn unclear(_: ErrorPage) -> ErrorPage {
    ErrorPage::bad_form("It does not say who is meant (`person`).")
}
