//! `POST /team/remove` takes somebody out of the portal: their sessions end, and signing in is refused. Their clients stay
//! theirs until a partner moves them. `POST /team/restore` lets them in again, in the role they had.

use super::{AboutSomebody, done, form_member, found, manage, refused};
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::state::Portal;
use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::Response;
use chancery_domain::PersonId;
use chancery_web::Refusal;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Form<AboutSomebody>, FormRejection>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &signed_in).await?;
    let read = form_member(&portal, form.map_err(unclear)).await;
    let (permit, person) = found(&portal, permit, read).await?;
    portal.store.remove_person(permit, person.id).await.map_err(|error| refused(&error))?;
    let at_provider = portal.store.end_provider_sessions_of(&person.identity.subject).await;
    at_provider.map_err(|error| refused(&error))?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::to_signed_out(),
        false => done(person.id, "removed"),
    })
}

pub(crate) async fn restore(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Form<AboutSomebody>, FormRejection>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &signed_in).await?;
    let (permit, Form(AboutSomebody { person })) = found(&portal, permit, form.map_err(unclear)).await?;
    let restored = portal.store.restore_person(permit, PersonId(person)).await;
    let person = restored.map_err(|error| refused(&error))?;
    Ok(done(person.id, "restored"))
}

fn unclear(_: FormRejection) -> Refusal {
    Refusal::bad_form("It does not say who is meant (`person`).")
}
