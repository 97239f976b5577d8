//! The letter's editor on a page of its own, for a draft that was asked for without scripts: the draft in the editor, what was
//! there before beside it, and the panel as it was filled in.

use super::failure::Failure;
use super::form::DraftForm;
use super::panel::DraftPanel;
use super::receipt::Receipt;
use crate::frame::{Frame, Section};
use crate::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use chancery_domain::{Client, Entry};
use chancery_pages::{Refusal, page};

#[derive(Template)]
#[template(path = "letter_draft.html")]
struct LetterDraftPage<'a> {
    frame: Frame<'a>,
    client: &'a Client,
    form: &'a DraftForm,
    save_at: String,
    panel: String,
    said: Option<String>,
    is_failed: bool,
}

/// What became of the draft.
pub(super) enum Outcome {
    Finished(Box<Receipt>),
    Failed(Failure),
    /// Nothing was drafted; a former text is in the editor again.
    PutBack,
}

pub(super) async fn show(
    portal: &Portal,
    who: &SignedIn,
    client: &Client,
    entries: &[Entry],
    form: &DraftForm,
    outcome: Outcome,
) -> Result<Response, Refusal> {
    let panel = DraftPanel::after(portal, client.id, entries, form).await;
    let (mut status, mut retry_after_s) = (StatusCode::OK, None);
    let (panel, said, is_failed) = match outcome {
        Outcome::Finished(receipt) => {
            let words = receipt.words;
            let said = format!(
                "The draft is in the editor. {} and {}, for {}.",
                words.read,
                lower_first(&words.wrote),
                words.cost
            );
            (panel.finished(words), Some(said), false)
        }
        Outcome::Failed(failure) => {
            (status, retry_after_s) = (failure.status, failure.retry_after_s);
            // What is about a field stands there; the rest is said at the top of the page, once.
            let said = failure.field.is_none().then(|| failure.words.clone());
            let panel = if failure.field.is_some() { panel.failed(failure) } else { panel };
            (panel, said, true)
        }
        Outcome::PutBack => (panel, Some("Your text is back in the editor.".to_owned()), false),
    };
    let panel = panel.render().map_err(|error| Refusal::internal(format!("the draft panel: {error}")))?;
    let save_at = match form.entry {
        Some(entry) => format!("/clients/{}/entries/{entry}", client.id),
        None => format!("/clients/{}/entries", client.id),
    };
    let frame = Frame::new(portal, who, Section::Clients);
    let shown = LetterDraftPage { frame, client, form, save_at, panel, said, is_failed };
    let mut response = page(status, &shown)?;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

fn lower_first(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
