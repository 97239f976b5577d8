//! The panel beside a letter's editor: purpose, context, cost, and the receipt of the last draft.
//! `templates/drafting/panel.html` is inside the editor's form, so that a request for a draft includes everything typed.

use super::error::{DraftError, DraftErrorKind};
use super::failure::DraftFailure;
use super::form::DraftForm;
use super::limits::{DEFAULT_OUTPUT_TOKENS, OUTPUT_TOKENS};
use super::receipt::ReceiptText;
use crate::state::Portal;
use crate::time_format::{LocalTime, short_local_day};
use askama::Template;
use chancery_domain::{ClientId, Entry, EntryId, EntryKind};
use chancery_web::ErrorPage;

/// Number of newest notes and disputes that are preselected in a new editor.
const DEFAULT_SELECTED: usize = 2;

/// A separate template, so that its content is escaped; the editor includes the resulting HTML.
#[derive(Template)]
#[template(path = "drafting/panel.html")]
pub(crate) struct DraftPanel {
    client: ClientId,
    purpose: String,
    choices: Vec<EntryChoice>,
    max_output_tokens: String,
    /// The maximum cost of the longest reply, or why it is unknown.
    cost_text: String,
    /// Shown instead of the panel if drafting is off.
    unavailable_text: Option<String>,
    failure: Option<DraftFailure>,
    receipt: Option<ReceiptText>,
    is_redraft: bool,
    /// The editor's text before earlier drafts, newest first.
    previous_texts: Vec<String>,
}

struct EntryChoice {
    id: EntryId,
    label: String,
    is_checked: bool,
}

/// The editor beside the panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelInput<'a> {
    /// The letter in the editor; `None` for a new one.
    pub(crate) entry: Option<EntryId>,
    /// As typed; may be empty.
    pub(crate) purpose: &'a str,
    pub(crate) max_output_tokens: &'a str,
}

impl DraftPanel {
    /// For an editor that was just opened, or whose letter could not be saved. `entries` are the record's newest.
    pub(crate) async fn for_editor(
        portal: &Portal,
        client: ClientId,
        entries: &[Entry],
        input: PanelInput<'_>,
        local: &LocalTime,
    ) -> Self {
        let others = || entries.iter().filter(|entry| Some(entry.id) != input.entry);
        let selected: Vec<EntryId> = others()
            .filter(|entry| entry.kind != EntryKind::DraftLetter)
            .take(DEFAULT_SELECTED)
            .map(|entry| entry.id)
            .collect();
        let choices = choices(others(), &selected, local);
        let max_output_tokens = match input.max_output_tokens {
            "" => DEFAULT_OUTPUT_TOKENS.to_string(),
            typed => typed.to_owned(),
        };
        let panel = Self::new(portal, client, choices, max_output_tokens).await;
        Self { purpose: input.purpose.to_owned(), ..panel }
    }

    /// For an editor that is shown again with its typed values. `entries` are the newest and the selected ones.
    pub(crate) async fn for_form(
        portal: &Portal,
        client: ClientId,
        entries: &[Entry],
        form: &DraftForm,
        local: &LocalTime,
    ) -> Self {
        let others = entries.iter().filter(|entry| Some(entry.id) != form.entry);
        let choices = choices(others, &form.chosen(), local);
        let mut panel = Self::new(portal, client, choices, form.max_output_tokens.clone()).await;
        panel.purpose.clone_from(&form.purpose);
        panel.previous_texts.clone_from(&form.previous_texts);
        panel
    }

    async fn new(
        portal: &Portal,
        client: ClientId,
        choices: Vec<EntryChoice>,
        max_output_tokens: String,
    ) -> Self {
        let typed: Option<u32> = max_output_tokens.trim().replace([',', ' '], "").parse().ok();
        let typed = typed.filter(|tokens| OUTPUT_TOKENS.contains(tokens)).unwrap_or(DEFAULT_OUTPUT_TOKENS);
        let mut unavailable_text = None;
        let cost_text = match &portal.drafter {
            None => {
                unavailable_text = Some(DraftError::new(DraftErrorKind::NotConfigured, "").message());
                String::new()
            }
            Some(drafter) => match drafter.model_offer().await {
                Ok(model_offer) => model_offer.max_cost_text(typed).unwrap_or_default(),
                Err(_) => "The price is not available: the model is not responding.".to_owned(),
            },
        };
        Self {
            client,
            purpose: String::new(),
            choices,
            max_output_tokens,
            cost_text,
            unavailable_text,
            failure: None,
            receipt: None,
            is_redraft: false,
            previous_texts: Vec::new(),
        }
    }

    pub(crate) fn html(&self) -> Result<String, ErrorPage> {
        self.render().map_err(|error| ErrorPage::internal(format!("the draft panel: {error}")))
    }

    pub(super) fn finished(mut self, receipt: ReceiptText) -> Self {
        self.receipt = Some(receipt);
        self.is_redraft = true;
        self
    }

    pub(super) fn failed(mut self, failure: DraftFailure) -> Self {
        self.failure = Some(failure);
        self
    }

    fn field_error(&self, field: &str) -> Option<&str> {
        let failure = self.failure.as_ref()?;
        (failure.field == Some(field)).then_some(failure.message.as_str())
    }

    /// The text of a failure that concerns no field.
    fn notice(&self) -> Option<&str> {
        let failure = self.failure.as_ref()?;
        failure.field.is_none().then_some(failure.message.as_str())
    }
}

fn choices<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    selected: &[EntryId],
    local: &LocalTime,
) -> Vec<EntryChoice> {
    let choice = |entry: &Entry| {
        let kind = match entry.kind {
            EntryKind::MeetingNote => "Note",
            EntryKind::BillingDispute => "Dispute",
            EntryKind::DraftLetter => "Letter",
        };
        let label = format!("{kind}, {}: {}", short_local_day(entry.at, local), entry.title);
        EntryChoice { id: entry.id, label, is_checked: selected.contains(&entry.id) }
    };
    entries.map(choice).collect()
}
