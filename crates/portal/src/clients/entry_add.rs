//! `POST /clients/{id}/entries`: creates a note, dispute or letter.

use super::done::CompletedChange;
use super::entry_form::{EntryForm, EntryInput};
use super::record::{self, OpenForm, RecordPageState};
use super::record_query::{RecordQuery, TimelineView, entry_href};
use super::unsaved::record_form::RecordForm;
use crate::error::PageError;
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{ClientId, EntryKind};
use chancery_policy::EditClient;
use chancery_store::{ClientError, NewEntry};
use chancery_web::{ErrorPage, Notice, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    ClientNumber(id): ClientNumber,
    RecordForm { signed_in, body: PostedForm(typed), previous_texts, .. }: RecordForm<PostedForm<EntryInput>>,
) -> Result<Response, PageError> {
    let typed = EntryInput { previous_texts, ..typed };
    let kind: EntryKind =
        typed.kind.parse().map_err(|error| ErrorPage::invalid_form(format!("Invalid `kind`: {error}.")))?;
    let currency = portal.settings.invoice_terms.currency;
    let read = match typed.read(kind, portal.clock.now(), &signed_in.local_time(&portal), currency) {
        Ok(read) => read,
        Err(problems) => {
            portal.ensure_allowed_on_client::<EditClient>(&signed_in, id).await?;
            let form = EntryForm { problems, ..EntryForm::typed(kind, None, typed) };
            return render_with_errors(&portal, &signed_in, id, form, None).await;
        }
    };
    let new = NewEntry {
        kind,
        title: read.title,
        text: read.text,
        at: read.at,
        author: signed_in.person.id,
        is_open: read.is_open,
        dispute: read.dispute.unwrap_or_default(),
        is_archived: false,
    };
    let add = async |permit| match portal.store.clients.add_entry(permit, new.clone()).await {
        Err(ClientError::TooManyEntries { max, .. }) => Ok(Err(max)),
        outcome => outcome.map(Ok),
    };
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, id, add).await? {
        Ok(entry) => {
            let href = entry_href(id, RecordQuery::default(), CompletedChange::Added(kind), entry.id);
            Ok(Redirect::to(&href).into_response())
        }
        Err(max) => {
            let text = format!("This record is full ({max} entries). Create another client for new entries.");
            let notice = Notice::warning("Not saved.", text);
            render_with_errors(&portal, &signed_in, id, EntryForm::typed(kind, None, typed), Some(notice))
                .await
        }
    }
}

/// Shows the record again with the typed form.
async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    form: EntryForm,
    notice: Option<Notice>,
) -> Result<Response, PageError> {
    let (view, status) = (TimelineView::default(), StatusCode::UNPROCESSABLE_ENTITY);
    record::show(portal, signed_in, id, RecordPageState { view, open: OpenForm::Entry(form), notice, status })
        .await
}
