//! `POST /clients/{id}/entries`: a new note, dispute or letter.

use super::entry_form::{EntryForm, EntryTyped};
use super::notice::Done;
use super::posted::Posted;
use super::record::{self, Open, Showing};
use super::record_query::{View, done_href};
use crate::authority::ClientNumber;
use crate::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::EntryKind;
use chancery_pages::Refusal;
use chancery_policy::EditClient;
use chancery_store::NewEntry;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    Posted(typed): Posted<EntryTyped>,
) -> Result<Response, Refusal> {
    let kind: EntryKind =
        typed.kind.parse().map_err(|error| Refusal::bad_form(format!("`kind` is not right: {error}.")))?;
    let read = match typed.read(kind, portal.clock.now()) {
        Ok(read) => read,
        Err(problems) => {
            let form = EntryForm { problems, ..EntryForm::typed(kind, None, typed) };
            let (view, status) = (View::default(), StatusCode::UNPROCESSABLE_ENTITY);
            let showing = Showing { view, open: Open::Entry(form), notice: None, status };
            return record::show(&portal, &who, id, showing).await;
        }
    };
    let new = NewEntry {
        kind,
        title: read.title,
        text: read.text,
        at: read.at,
        author: who.person.id,
        is_open: read.is_open,
    };
    let add = |permit| portal.store.add_entry(permit, new.clone());
    let entry = portal.on_client::<EditClient, _, _>(&who, id, add).await?;
    let href = format!("{}#entry-{}", done_href(id, Done::Added(kind)), entry.id);
    Ok(Redirect::to(&href).into_response())
}
