//! `GET /accounts`: the accounts, page by page, and the unattached keys. `?open=account` opens the form for a new
//! account; `?key=` opens the actions for one of those keys. `?open=key` and `?key=…&open=rotate` open forms that need a
//! recent authentication (`step_up`).

use super::forms::{LabelInput, NewAccountInput};
use super::json;
use super::key_forms::{KeyLimitsInput, NewKeyInput, RotateInput, secret_id};
use super::list_query::{self, PageLinks};
use super::view::{AccountRow, EventRow, KeyRow, change_notice};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use crate::time_format::{LocalTime, format_day};
use crate::total_text::total_text;
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use chancery_domain::{KeyState, Month, group_thousands};
use chancery_policy::{FirmResource, ReadAccounts};
use chancery_store::{AccountPage, AccountQuery};
use chancery_web::{Form, Notice, Problems, page, wants_json};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "accounts/list.html")]
struct ListPage<'a> {
    frame: Frame<'a>,
    notice: Option<Notice>,
    rows: Vec<AccountRow>,
    month: String,
    links: PageLinks,
    total: String,
    /// Whether there is any account, on this page or another.
    has_accounts: bool,
    new_account: Option<Form<NewAccountInput>>,
    new_key: Option<Form<NewKeyInput>>,
    currency: String,
    keys: Vec<KeyRow>,
    keys_total: u64,
    key: Option<KeyCard>,
    history: Vec<EventRow>,
}

/// The actions for one key.
pub(super) struct KeyCard {
    pub(super) row: KeyRow,
    pub(super) label: Form<LabelInput>,
    pub(super) limits: Form<KeyLimitsInput>,
    pub(super) currency: String,
    /// For how many hours the old secret of a rotated key can still work, with their texts and which one is selected.
    pub(super) overlaps: Vec<(u64, &'static str, bool)>,
    pub(super) rotate_problems: Problems,
    /// Identifies the secret that the form rotates.
    pub(super) secret_id: String,
    pub(super) attach_problems: Problems,
    /// Number and name of the accounts that the key can bill.
    pub(super) accounts: Vec<(i64, String)>,
    /// Whether the form that rotates the key is open.
    pub(super) is_rotating: bool,
    /// Path of the page that contains the card.
    pub(super) page: String,
    /// URL of that page without the card.
    pub(super) back: String,
    /// Whether the key already bills an account.
    pub(super) is_attached: bool,
    /// Whether the key belongs to the account that Chancery created for drafting letters.
    pub(super) belongs_to_drafting_account: bool,
}

impl KeyCard {
    pub(super) fn has_problems(&self) -> bool {
        self.label.problems.any()
            || self.limits.problems.any()
            || self.rotate_problems.any()
            || self.attach_problems.any()
    }
}

/// The open forms and their typed values.
#[derive(Default)]
pub(super) struct ListFormState {
    pub(super) new_account: Option<Form<NewAccountInput>>,
    pub(super) new_key: Option<Form<NewKeyInput>>,
    pub(super) is_rotating: bool,
    /// URL of this page, if it opens a form that needs a recent authentication.
    pub(super) step_up: Option<String>,
    /// Public prefix of the selected key.
    pub(super) key: Option<String>,
    pub(super) key_label: Option<Form<LabelInput>>,
    pub(super) key_limits: Option<Form<KeyLimitsInput>>,
    pub(super) key_rotate: Form<RotateInput>,
    pub(super) attach_problems: Problems,
}

impl ListPage<'_> {
    fn has_problems(&self) -> bool {
        let in_account = self.new_account.as_ref().is_some_and(|form| form.problems.any());
        let in_key = self.new_key.as_ref().is_some_and(|form| form.problems.any());
        in_account || in_key || self.key.as_ref().is_some_and(KeyCard::has_problems)
    }

    fn keys_total_text(&self) -> String {
        group_thousands(self.keys_total)
    }

    fn has_more_keys(&self) -> bool {
        self.keys_total > self.keys.len() as u64
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let limits = portal.settings.api.default_limits;
    let open = |form: &str| query.get("open").is_some_and(|open| open == form);
    let key = query.get("key").cloned();
    let is_rotating = key.is_some() && open("rotate");
    let open = ListFormState {
        new_account: open("account").then(|| Form::of(NewAccountInput::with_limits(limits))),
        new_key: open("key").then(|| Form::of(NewKeyInput::fresh(portal.randomness.as_ref()))),
        is_rotating,
        step_up: (open("key") || is_rotating)
            .then(|| uri.path_and_query().map_or_else(String::new, ToString::to_string)),
        key,
        ..ListFormState::default()
    };
    show(&portal, &signed_in, StatusCode::OK, &query, open, wants_json(&headers)).await
}

/// Shows the page again with the typed values and their problems.
pub(super) async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    open: ListFormState,
) -> Result<Response, PageError> {
    show(portal, signed_in, StatusCode::UNPROCESSABLE_ENTITY, &HashMap::new(), open, false).await
}

async fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    status: StatusCode,
    query: &HashMap<String, String>,
    open: ListFormState,
    as_json: bool,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadAccounts>(signed_in, FirmResource).await?;
    let now = portal.clock.now();
    let cursor = list_query::parse(query)?;
    let page_number = list_query::page_number(cursor.as_ref());
    let account_query = AccountQuery {
        month: Month::containing(now),
        cursor,
        counts_all: as_json,
        reads_options: open.key.is_some(),
    };
    let found = portal.store.accounts.read_accounts(permit, account_query).await?;
    let links = PageLinks::new(&found);
    if as_json {
        return Ok(json::list(&found, page_number, &links, portal.settings.invoice_terms.currency));
    }
    if let Some(page) = &open.step_up
        && let Some(redirect) = step_up::required_for_page(portal, signed_in, page)?
    {
        return Ok(redirect);
    }
    let notice = change_notice(query, &found.events);
    let (names, local) = (PersonNames::read(portal).await?, signed_in.local_time(portal));
    let key = open.key.as_ref().and_then(|prefix| key_card(portal, &found, prefix, &open, &local));
    let list = ListPage {
        frame: Frame::new(portal, signed_in, Section::Accounts),
        notice,
        rows: found
            .accounts
            .iter()
            .map(|overview| AccountRow::new(overview, portal.settings.invoice_terms.currency))
            .collect(),
        month: format_day(Month::containing(now).first_day(), "%B"),
        links,
        total: total_text(found.total),
        has_accounts: found.total.known() > 0,
        new_account: open.new_account,
        new_key: open.new_key,
        currency: portal.settings.invoice_terms.currency.to_string(),
        keys: found.unassigned_keys.iter().map(|used| KeyRow::new(used, portal, &local)).collect(),
        keys_total: found.unassigned_keys_total,
        key,
        history: found.events.iter().map(|event| EventRow::new(event, &names, &local)).collect(),
    };
    Ok(page(status, &list)?)
}

fn key_card(
    portal: &Portal,
    found: &AccountPage,
    prefix: &str,
    open: &ListFormState,
    local: &LocalTime,
) -> Option<KeyCard> {
    let used = found.unassigned_keys.iter().find(|used| used.key.prefix.as_str() == prefix)?;
    let label = LabelInput { label: used.key.label.clone() };
    (used.key.state == KeyState::Active).then(|| KeyCard {
        row: KeyRow::new(used, portal, local),
        label: open.key_label.clone().unwrap_or_else(|| Form::of(label)),
        limits: open.key_limits.clone().unwrap_or_else(|| Form::of(KeyLimitsInput::of(&used.key.limits))),
        currency: portal.settings.invoice_terms.currency.to_string(),
        overlaps: open.key_rotate.typed.overlap_choices(),
        rotate_problems: open.key_rotate.problems.clone(),
        secret_id: secret_id(&used.key.hash),
        attach_problems: open.attach_problems.clone(),
        accounts: found.open_accounts.iter().map(|choice| (choice.id.0, choice.name.to_string())).collect(),
        is_rotating: open.is_rotating,
        page: "/accounts".to_owned(),
        back: "/accounts#unattached".to_owned(),
        is_attached: false,
        belongs_to_drafting_account: false,
    })
}
