//! The panel beside a letter's editor: what the model is to do, what it may read, what that costs, and what the last draft
//! took. `templates/drafting/panel.html` is one part of the editor's form, so that a draft is asked for with everything typed.

use super::failure::Failure;
use super::fault::{Fault, Trouble};
use super::form::DraftForm;
use super::limits::{DEFAULT_OUTPUT_TOKENS, OUTPUT_TOKENS};
use super::receipt::ReceiptWords;
use crate::state::Portal;
use crate::when::short_day;
use askama::Template;
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, UnixMillis};
use chancery_web::ErrorPage;

/// So many of the newest notes and disputes are ticked in an editor that was just opened.
const TICKED_AT_FIRST: usize = 2;

/// A template of its own, which escapes what it shows; an editor has its HTML at its side.
#[derive(Template)]
#[template(path = "drafting/panel.html")]
pub(crate) struct DraftPanel {
    client: ClientId,
    purpose: String,
    choices: Vec<Choice>,
    max_output_tokens: String,
    /// What the longest reply costs at most, or why nobody knows.
    cost_words: String,
    /// Where letters are not drafted here: what the panel says instead.
    off_words: Option<String>,
    failure: Option<Failure>,
    receipt: Option<ReceiptWords>,
    is_again: bool,
    /// What was in the editor before earlier drafts, the newest first.
    former_texts: Vec<String>,
}

struct Choice {
    id: EntryId,
    label: String,
    is_ticked: bool,
}

/// What a panel stands beside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<'a> {
    /// The letter in the editor; None for a new one.
    pub(crate) entry: Option<EntryId>,
    /// As typed, where something was.
    pub(crate) purpose: &'a str,
    pub(crate) max_output_tokens: &'a str,
}

impl DraftPanel {
    /// For an editor that was just opened, or whose letter could not be saved. `entries` are the record's newest.
    pub(crate) async fn fresh(
        portal: &Portal,
        client: ClientId,
        entries: &[Entry],
        beside: Beside<'_>,
    ) -> Self {
        let others = || entries.iter().filter(|entry| Some(entry.id) != beside.entry);
        let ticked: Vec<EntryId> = others()
            .filter(|entry| entry.kind != EntryKind::DraftLetter)
            .take(TICKED_AT_FIRST)
            .map(|entry| entry.id)
            .collect();
        let choices = choices(others(), &ticked, portal.clock.now());
        let max_output_tokens = match beside.max_output_tokens {
            "" => DEFAULT_OUTPUT_TOKENS.to_string(),
            typed => typed.to_owned(),
        };
        let panel = Self::new(portal, client, choices, max_output_tokens).await;
        Self { purpose: beside.purpose.to_owned(), ..panel }
    }

    /// For an editor that comes back with what was typed in it. `entries` are the newest and the chosen ones.
    pub(crate) async fn after(
        portal: &Portal,
        client: ClientId,
        entries: &[Entry],
        form: &DraftForm,
    ) -> Self {
        let others = entries.iter().filter(|entry| Some(entry.id) != form.entry);
        let choices = choices(others, &form.chosen(), portal.clock.now());
        let mut panel = Self::new(portal, client, choices, form.max_output_tokens.clone()).await;
        panel.purpose.clone_from(&form.purpose);
        panel.former_texts.clone_from(&form.former_texts);
        panel
    }

    async fn new(portal: &Portal, client: ClientId, choices: Vec<Choice>, max_output_tokens: String) -> Self {
        let typed: Option<u32> = max_output_tokens.trim().replace([',', ' '], "").parse().ok();
        let typed = typed.filter(|tokens| OUTPUT_TOKENS.contains(tokens)).unwrap_or(DEFAULT_OUTPUT_TOKENS);
        let mut off_words = None;
        let cost_words = match &portal.drafter {
            None => {
                off_words = Some(Fault::new(Trouble::Off, "").words());
                String::new()
            }
            Some(drafter) => match drafter.offer().await {
                Ok(offer) => offer.longest_reply_words(typed).unwrap_or_default(),
                Err(_) => {
                    "The model does not answer at the moment, so what this costs is not known yet.".to_owned()
                }
            },
        };
        Self {
            client,
            purpose: String::new(),
            choices,
            max_output_tokens,
            cost_words,
            off_words,
            failure: None,
            receipt: None,
            is_again: false,
            former_texts: Vec::new(),
        }
    }

    /// For the side of the editor.
    pub(crate) fn html(&self) -> Result<String, ErrorPage> {
        self.render().map_err(|error| ErrorPage::internal(format!("the draft panel: {error}")))
    }

    pub(super) fn finished(mut self, receipt: ReceiptWords) -> Self {
        self.receipt = Some(receipt);
        self.is_again = true;
        self
    }

    pub(super) fn failed(mut self, failure: Failure) -> Self {
        self.failure = Some(failure);
        self
    }

    fn error_at(&self, field: &str) -> Option<&str> {
        let failure = self.failure.as_ref()?;
        (failure.field == Some(field)).then_some(failure.words.as_str())
    }

    /// What is about no field.
    fn notice(&self) -> Option<&str> {
        let failure = self.failure.as_ref()?;
        failure.field.is_none().then_some(failure.words.as_str())
    }
}

fn choices<'a>(entries: impl Iterator<Item = &'a Entry>, ticked: &[EntryId], now: UnixMillis) -> Vec<Choice> {
    let choice = |entry: &Entry| {
        let kind = match entry.kind {
            EntryKind::MeetingNote => "Note",
            EntryKind::BillingDispute => "Dispute",
            EntryKind::DraftLetter => "Letter",
        };
        let label = format!("{kind}, {}: {}", short_day(entry.at, now), entry.title);
        Choice { id: entry.id, label, is_ticked: ticked.contains(&entry.id) }
    };
    entries.map(choice).collect()
}
