//! `GET /accounts`: every account, and the keys that bill none. With `?open=account` the form of a new account stands above the
//! list; with `?key=` what can be done with one of those keys.

use super::forms::{LabelTyped, NewAccountTyped};
use super::json;
use super::view::{AccountRow, EventRow, KeyRow, what_was_done};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::written_day;
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{KeyState, Month, UnixMillis, grouped};
use chancery_policy::{ReadAccounts, TheFirm};
use chancery_store::{ACCOUNTS_PER_PAGE, AccountPage, AccountQuery};
use chancery_web::{Form, Notice, PageLink, Pagination, Problems, page, wants_json};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "accounts/list.html")]
struct ListPage<'a> {
    frame: Frame<'a>,
    notice: Option<Notice>,
    rows: Vec<AccountRow>,
    month: String,
    pages: Pagination,
    new_account: Option<Form<NewAccountTyped>>,
    new_key: Form<LabelTyped>,
    keys: Vec<KeyRow>,
    keys_total: u64,
    key: Option<KeyCard>,
    history: Vec<EventRow>,
}

/// What can be done with one key.
pub(super) struct KeyCard {
    pub(super) row: KeyRow,
    pub(super) label: Form<LabelTyped>,
    pub(super) attach_problems: Problems,
    /// Number and name of the accounts that it can bill.
    pub(super) accounts: Vec<(i64, String)>,
    /// Where the card's own page is.
    pub(super) back: String,
    /// Whether it bills an account already.
    pub(super) moves: bool,
    /// Whether its account is the one that the program made for letters.
    pub(super) is_of_drafting_account: bool,
}

/// What is open on the page, and what was typed there.
#[derive(Default)]
pub(super) struct Open {
    pub(super) new_account: Option<Form<NewAccountTyped>>,
    pub(super) new_key: Form<LabelTyped>,
    /// The public part of the key that the card is about.
    pub(super) key: Option<String>,
    pub(super) key_label: Option<Form<LabelTyped>>,
    pub(super) attach_problems: Problems,
}

impl ListPage<'_> {
    fn has_problems(&self) -> bool {
        let in_account = self.new_account.as_ref().is_some_and(|form| form.problems.any());
        let in_key = |card: &KeyCard| card.label.problems.any() || card.attach_problems.any();
        in_account || self.new_key.problems.any() || self.key.as_ref().is_some_and(in_key)
    }

    fn total_words(&self) -> String {
        grouped(self.pages.total)
    }

    fn keys_total_words(&self) -> String {
        grouped(self.keys_total)
    }

    fn has_more_keys(&self) -> bool {
        self.keys_total > self.keys.len() as u64
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let limits = portal.settings.api.default_limits;
    let is_open = query.get("open").is_some_and(|open| open == "account");
    let open = Open {
        new_account: is_open.then(|| Form::of(NewAccountTyped::with_limits(limits))),
        key: query.get("key").cloned(),
        ..Open::default()
    };
    show(&portal, &who, StatusCode::OK, &query, open, wants_json(&headers)).await
}

/// The page again, with what was typed and what is wrong with it.
pub(super) async fn put_right(portal: &Portal, who: &SignedIn, open: Open) -> Result<Response, PageError> {
    show(portal, who, StatusCode::UNPROCESSABLE_ENTITY, &HashMap::new(), open, false).await
}

async fn show(
    portal: &Portal,
    who: &SignedIn,
    status: StatusCode,
    query: &HashMap<String, String>,
    open: Open,
    as_json: bool,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadAccounts>(who, TheFirm).await?;
    let now = portal.clock.now();
    let number = query.get("page").and_then(|page| page.parse().ok()).unwrap_or(1).max(1);
    let asked = AccountQuery { month: Month::of(now), page: number };
    let found = portal.store.accounts.read_accounts(permit, asked).await?;
    let href = |page| format!("/accounts?page={page}");
    let pages = Pagination::new(number, ACCOUNTS_PER_PAGE, found.total, found.accounts.len(), href);
    if as_json {
        return Ok(json::list(&found, number, pages.count, portal.settings.invoice_terms.currency));
    }
    let notice = what_was_done(query, &found.events);
    let key = open.key.as_ref().and_then(|prefix| key_card(portal, &found, prefix, &open, now));
    let list = ListPage {
        frame: Frame::new(portal, who, Section::Accounts),
        notice,
        rows: found
            .accounts
            .iter()
            .map(|overview| AccountRow::new(overview, portal.settings.invoice_terms.currency))
            .collect(),
        month: written_day(Month::of(now).first_day(), "%B"),
        pages,
        new_account: open.new_account,
        new_key: open.new_key,
        keys: found.unattached.iter().map(|used| KeyRow::new(used, portal, now)).collect(),
        keys_total: found.unattached_total,
        key,
        history: found.events.iter().map(|event| EventRow::new(event, now)).collect(),
    };
    Ok(page(status, &list)?)
}

fn key_card(
    portal: &Portal,
    found: &AccountPage,
    prefix: &str,
    open: &Open,
    now: UnixMillis,
) -> Option<KeyCard> {
    let used = found.unattached.iter().find(|used| used.key.prefix.as_str() == prefix)?;
    let label = LabelTyped { label: used.key.label.clone() };
    (used.key.state == KeyState::Active).then(|| KeyCard {
        row: KeyRow::new(used, portal, now),
        label: open.key_label.clone().unwrap_or_else(|| Form::of(label)),
        attach_problems: open.attach_problems.clone(),
        accounts: found.open_accounts.iter().map(|choice| (choice.id.0, choice.name.to_string())).collect(),
        back: "/accounts#unattached".to_owned(),
        moves: false,
        is_of_drafting_account: false,
    })
}
