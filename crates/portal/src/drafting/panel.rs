//! The panel beside a letter's editor: the model, purpose, context, cost, edits of the text, and the receipt of the last draft.
//! `templates/drafting/panel.html` is inside the editor's form, so that a request for a draft includes everything typed.

use super::error::{DraftError, DraftErrorKind};
use super::estimate::{CostEstimate, fixed_input_tokens, max_entry_tokens};
use super::failure::DraftFailure;
use super::form::DraftForm;
use super::job::FinishedDraft;
use super::limits::{DEFAULT_OUTPUT_TOKENS, OUTPUT_TOKENS};
use super::model_notice::model_notice;
use super::receipt::ReceiptText;
use crate::state::Portal;
use crate::time_format::{LocalTime, short_local_day};
use askama::Template;
use chancery_domain::{Client, ClientId, Entry, EntryId, EntryKind};
use chancery_web::ErrorPage;

/// Number of newest notes and disputes that are preselected in a new editor.
const DEFAULT_SELECTED: usize = 2;

/// A separate template, so that its content is escaped; the editor includes the resulting HTML.
#[derive(Template)]
#[template(path = "drafting/panel.html")]
pub(crate) struct DraftPanel {
    client: ClientId,
    /// The model and what to expect of it.
    model_text: Option<String>,
    purpose: String,
    choices: Vec<EntryChoice>,
    max_output_tokens: String,
    /// The highest cost, or why it is unknown.
    cost_text: String,
    /// `None` if the price is unknown.
    estimate: Option<CostEstimate>,
    /// Shown instead of the panel if drafting is off.
    unavailable_text: Option<String>,
    failure: Option<DraftFailure>,
    receipt: Option<ReceiptText>,
    /// Why the last text is unfinished and what to do.
    unfinished: Option<&'static str>,
    /// What to check in the last text.
    checks: Vec<String>,
    is_redraft: bool,
    /// Number of drafts and edits that this editor has had.
    attempt: u32,
    /// The editor's text before earlier drafts, newest first.
    previous_texts: Vec<String>,
}

struct EntryChoice {
    id: EntryId,
    label: String,
    is_checked: bool,
    max_tokens: u32,
}

/// The editor beside the panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelInput<'a> {
    /// The letter in the editor; `None` for a new one.
    pub(crate) entry: Option<EntryId>,
    /// As typed; may be empty.
    pub(crate) purpose: &'a str,
    pub(crate) max_output_tokens: &'a str,
    /// The editor's texts before earlier drafts, newest first.
    pub(crate) previous_texts: &'a [String],
}

impl DraftPanel {
    /// For an editor that was just opened, or whose letter could not be saved. `entries` are the record's newest.
    pub(crate) async fn for_editor(
        portal: &Portal,
        client: &Client,
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
        let choices = choices(others(), client, &selected, local);
        let panel = Self::new(portal, client, choices, input.max_output_tokens, local).await;
        let previous_texts = input.previous_texts.to_vec();
        Self { purpose: input.purpose.to_owned(), previous_texts, ..panel }
    }

    /// For an editor that is shown again with its typed values. `entries` are the newest and the selected ones.
    pub(crate) async fn for_form(
        portal: &Portal,
        client: &Client,
        entries: &[Entry],
        form: &DraftForm,
        local: &LocalTime,
    ) -> Self {
        let others = entries.iter().filter(|entry| Some(entry.id) != form.entry);
        let choices = choices(others, client, &form.chosen(), local);
        let mut panel = Self::new(portal, client, choices, &form.max_output_tokens, local).await;
        panel.attempt = form.attempt;
        panel.purpose.clone_from(&form.purpose);
        panel.previous_texts.clone_from(&form.previous_texts);
        panel
    }

    /// `typed` is the maximum length as typed. An empty one becomes what the model's size suggests.
    async fn new(
        portal: &Portal,
        client: &Client,
        choices: Vec<EntryChoice>,
        typed: &str,
        local: &LocalTime,
    ) -> Self {
        let (mut unavailable_text, mut estimate, mut model_text) = (None, None, None);
        let mut max_output_tokens = typed.to_owned();
        let state_text = portal.drafting_model.borrow().notice();
        let cost_text = match &portal.drafter {
            None => {
                unavailable_text = Some(DraftError::new(DraftErrorKind::NotConfigured, "").message());
                String::new()
            }
            Some(drafter) => match drafter.model_offer().await {
                Ok(model_offer) => {
                    let firm_name = &portal.settings.firm_name;
                    let suggested = model_offer.size().tuning().default_output_tokens;
                    if max_output_tokens.is_empty() {
                        max_output_tokens = suggested.to_string();
                    }
                    model_text = model_notice(Some(&model_offer), state_text.as_deref());
                    let fixed = fixed_input_tokens(firm_name, client, local, model_offer.size());
                    let entries =
                        choices.iter().fold(0_u32, |sum, choice| sum.saturating_add(choice.max_tokens));
                    let output = readable_tokens(&max_output_tokens).unwrap_or(suggested);
                    let new = CostEstimate::new(&model_offer, fixed, entries, output);
                    estimate.insert(new).text.clone()
                }
                Err(_) => {
                    model_text = model_notice(None, state_text.as_deref());
                    "The price is not available: the model is not responding.".to_owned()
                }
            },
        };
        if max_output_tokens.is_empty() {
            max_output_tokens = DEFAULT_OUTPUT_TOKENS.to_string();
        }
        Self {
            client: client.id,
            model_text,
            purpose: String::new(),
            choices,
            max_output_tokens,
            cost_text,
            estimate,
            unavailable_text,
            failure: None,
            receipt: None,
            unfinished: None,
            checks: Vec::new(),
            is_redraft: false,
            attempt: 0,
            previous_texts: Vec::new(),
        }
    }

    pub(crate) fn html(&self) -> Result<String, ErrorPage> {
        self.render().map_err(|error| ErrorPage::internal(format!("the draft panel: {error}")))
    }

    pub(super) fn finished(mut self, finished: FinishedDraft) -> Self {
        let FinishedDraft { receipt, composition, title } = finished;
        self.receipt = Some(receipt.text);
        self.unfinished = composition.unfinished;
        self.checks = composition.checks;
        self.is_redraft = title.is_some();
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

/// The maximum length, if what was typed is a valid one.
fn readable_tokens(typed: &str) -> Option<u32> {
    let tokens: Option<u32> = typed.trim().replace([',', ' '], "").parse().ok();
    tokens.filter(|tokens| OUTPUT_TOKENS.contains(tokens))
}

fn choices<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    client: &Client,
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
        let (is_checked, max_tokens) = (selected.contains(&entry.id), max_entry_tokens(entry, client));
        EntryChoice { id: entry.id, label, is_checked, max_tokens }
    };
    entries.map(choice).collect()
}
