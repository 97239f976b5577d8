//! `POST /clients/{id}/unsaved`: stores what was typed into a form so far, for the script that sends it every few seconds.
//! `POST /clients/{id}/unsaved/discard`: deletes it. `kind` and `entry` name the form, as in the form itself.

use super::fields::UnsavedFields;
use super::record_form::{RecordForm, form_href};
use crate::error::{PageError, client_not_found, entry_not_found};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::ClientId;
use chancery_policy::EditClient;
use chancery_store::{NewUnsavedText, UnsavedForm};
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

type Pairs = Vec<(String, String)>;

pub(crate) async fn save(
    State(portal): State<Arc<Portal>>,
    ClientNumber(id): ClientNumber,
    RecordForm { signed_in, body: PostedForm(pairs), session, .. }: RecordForm<PostedForm<Pairs>>,
) -> Result<Response, PageError> {
    let fields = checked(&portal, &signed_in, id, pairs).await?;
    let session = session.ok_or_else(|| ErrorPage::internal("a signed-in browser sent no session"))?;
    let text = NewUnsavedText { form: fields.form, session, fields: &fields.json };
    let save = |permit| portal.store.clients.save_unsaved_text(permit, text);
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, id, save).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(not_found(id, fields.form).into()),
    }
}

pub(crate) async fn discard(
    State(portal): State<Arc<Portal>>,
    ClientNumber(id): ClientNumber,
    signed_in: SignedIn,
    PostedForm(pairs): PostedForm<Pairs>,
) -> Result<Response, PageError> {
    let form = checked(&portal, &signed_in, id, pairs).await?.form;
    let discard = |permit| portal.store.clients.discard_unsaved_text(permit, form);
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, id, discard).await? {
        true => Ok(Redirect::to(&form_href(id, form)).into_response()),
        false => Err(not_found(id, form).into()),
    }
}

/// A person who may not edit the client gets the same reply for any form.
async fn checked(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    pairs: Pairs,
) -> Result<UnsavedFields, PageError> {
    match UnsavedFields::of(pairs) {
        Ok(fields) => Ok(fields),
        Err(error) => {
            portal.ensure_allowed_on_client::<EditClient>(signed_in, id).await?;
            Err(ErrorPage::invalid_form(error.reason()).into())
        }
    }
}

fn not_found(client: ClientId, form: UnsavedForm) -> ErrorPage {
    match form {
        UnsavedForm::Entry(_) => entry_not_found(client),
        UnsavedForm::Details | UnsavedForm::NewEntry(_) => client_not_found(),
    }
}
