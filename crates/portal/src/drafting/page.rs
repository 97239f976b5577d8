//! The page for a draft or an edit without scripts: the record with the text in the editor, the previous text beside it, and the
//! panel as submitted.

use super::failure::DraftFailure;
use super::form::DraftForm;
use super::job::FinishedDraft;
use super::panel::DraftPanel;
use crate::clients::entry_form::{EntryForm, EntryInput};
use crate::clients::record::{self, OpenForm, RecordPageState};
use crate::clients::record_query::TimelineView;
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use chancery_domain::{ClientId, Entry, EntryKind};
use chancery_web::Notice;

pub(super) enum Outcome {
    Finished(FinishedDraft),
    Failed(DraftFailure),
    /// Nothing was drafted; a former text was restored.
    TextRestored,
}

/// `chosen` are the entries selected as context. They stay in the list even if they are not among the newest.
pub(super) async fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    chosen: &[Entry],
    form: DraftForm,
    outcome: Outcome,
) -> Result<Response, PageError> {
    let view = TimelineView::default();
    let record = record::read(portal, signed_in, id, &view.entry_query()).await?;
    let older = chosen.iter().filter(|chosen| !record.entries.iter().any(|entry| entry.id == chosen.id));
    let offered: Vec<Entry> = record.entries.iter().chain(older).cloned().collect();
    let panel = {
        let local = signed_in.local_time(portal);
        DraftPanel::for_form(portal, &record.client, &offered, &form, &local).await
    };

    let (mut status, mut retry_after_s) = (StatusCode::OK, None);
    let (panel, notice) = match outcome {
        Outcome::Finished(finished) => {
            let cost = &finished.receipt.text.cost;
            let (done, unfinished) = match &finished.title {
                Some(_) => ("Draft ready.", "Draft unfinished."),
                None => ("Text edited.", "Edit unfinished."),
            };
            let notice = match finished.composition.unfinished {
                Some(reason) => Notice::warning(unfinished, format!("{reason} Cost: {cost}.")),
                None => Notice::success(done, format!("Review it in the editor, then save. Cost: {cost}.")),
            };
            (panel.finished(finished), Some(notice))
        }
        Outcome::Failed(failure) => {
            (status, retry_after_s) = (failure.status, failure.retry_after_s);
            // A problem with a field is shown at the field, anything else at the top of the page.
            let title = if form.is_rewrite() { "Text not edited." } else { "Draft not created." };
            match failure.field {
                Some(_) => (panel.failed(failure), None),
                None => (panel, Some(Notice::warning(title, failure.message))),
            }
        }
        Outcome::TextRestored => {
            (panel, Some(Notice::success("Text restored.", "Your text is back in the editor.")))
        }
    };
    let side_panel_html = Some(panel.html()?);
    let DraftForm { entry, version, title, text, at, at_was, is_open, .. } = form;
    let version = version.map_or_else(String::new, |version| version.to_string());
    let kind = EntryKind::DraftLetter;
    let kind_typed = kind.to_string();
    let typed =
        EntryInput { kind: kind_typed, title, text, at, at_was, is_open, version, ..EntryInput::default() };
    let editor = EntryForm { side_panel_html, ..EntryForm::typed(kind, entry, typed) };
    let state = RecordPageState { view, open: OpenForm::Entry(editor), notice, status };
    let mut response = record::show_record(portal, signed_in, record, state).await?;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}
