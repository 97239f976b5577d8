//! The record with the letter's editor filled, for a draft that was asked for without scripts: the draft in the editor, what was
//! there before beside it, and the panel as it was filled in.

use super::failure::Failure;
use super::form::DraftForm;
use super::panel::DraftPanel;
use super::receipt::Receipt;
use crate::clients::entry_form::{EntryForm, EntryTyped};
use crate::clients::record::{self, Open, Showing};
use crate::clients::record_query::View;
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use chancery_domain::{ClientId, Entry, EntryKind};
use chancery_web::Notice;

/// What became of the draft.
pub(super) enum Outcome {
    Finished(Box<Receipt>),
    Failed(Failure),
    /// Nothing was drafted; a former text is in the editor again.
    PutBack,
}

/// `chosen` are the entries that the model was to read; they stay on offer though they may not be among the newest.
pub(super) async fn show(
    portal: &Portal,
    who: &SignedIn,
    id: ClientId,
    chosen: &[Entry],
    form: DraftForm,
    outcome: Outcome,
) -> Result<Response, PageError> {
    let view = View::default();
    let record = record::read(portal, who, id, &view.wanted()).await?;
    let older = chosen.iter().filter(|chosen| !record.entries.iter().any(|entry| entry.id == chosen.id));
    let offered: Vec<Entry> = record.entries.iter().chain(older).cloned().collect();
    let panel = DraftPanel::after(portal, id, &offered, &form).await;

    let (mut status, mut retry_after_s) = (StatusCode::OK, None);
    let (panel, notice) = match outcome {
        Outcome::Finished(receipt) => {
            let text = format!("It is in the editor, and not saved yet. It cost {}.", receipt.words.cost);
            (panel.finished(receipt.words), Some(Notice::good("Drafted.", text)))
        }
        Outcome::Failed(failure) => {
            (status, retry_after_s) = (failure.status, failure.retry_after_s);
            // What is about a field stands there; the rest is said at the top of the page.
            match failure.field {
                Some(_) => (panel.failed(failure), None),
                None => (panel, Some(Notice::warning("No draft.", failure.words))),
            }
        }
        Outcome::PutBack => (panel, Some(Notice::good("Done.", "Your text is back in the editor."))),
    };
    let side_panel = Some(panel.html()?);
    let DraftForm { entry, version, title, text, at, at_was, is_open, .. } = form;
    let version = version.map_or_else(String::new, |version| version.to_string());
    let kind = EntryKind::DraftLetter;
    let kind_typed = kind.to_string();
    let typed =
        EntryTyped { kind: kind_typed, title, text, at, at_was, is_open, version, ..EntryTyped::default() };
    let editor = EntryForm { side_panel, ..EntryForm::typed(kind, entry, typed) };
    let showing = Showing { view, open: Open::Entry(editor), notice, status };
    let mut response = record::show_read(portal, who, record, showing).await?;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}
