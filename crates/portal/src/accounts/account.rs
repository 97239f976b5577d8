//! `GET /accounts/{account}`: one account with its limits, its keys and what was done with them. Forms are folded until they are
//! wanted; with `?key=` what can be done with one of its keys stands above them.

use super::forms::{BillingTyped, LabelTyped, LimitsTyped};
use super::json;
use super::list::KeyCard;
use super::view::{EventRow, KeyRow, Made, Spend, long_moment, what_was_done};
use crate::drafting::settings::is_drafting;
use crate::error::{PageError, no_such_account};
use crate::frame::{Frame, Section};
use crate::path::AccountNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::written_day;
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{AccountId, AccountState, KeyState, Month, UnixMillis, grouped};
use chancery_policy::{ReadAccounts, TheFirm};
use chancery_store::{AccountRecord, MAX_ACCOUNT_EVENTS};
use chancery_web::{ErrorPage, Form, Notice, Problems, page, wants_json};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "accounts/account.html")]
struct AccountDetail<'a> {
    frame: Frame<'a>,
    notice: Option<Notice>,
    id: i64,
    /// Where this page is.
    href: String,
    name: String,
    rpm: String,
    tpm: String,
    cap: Option<String>,
    month: String,
    spend: Spend,
    address: Vec<String>,
    email: String,
    made: Made,
    closed: Option<Made>,
    is_drafting: bool,
    currency: String,
    limits: Form<LimitsTyped>,
    billing: Form<BillingTyped>,
    new_key: Form<LabelTyped>,
    keys: Vec<KeyRow>,
    keys_total: u64,
    active_keys: usize,
    key: Option<KeyCard>,
    unattached: Vec<KeyRow>,
    attach_problems: Problems,
    history: Vec<EventRow>,
    has_whole_history: bool,
}

/// What is open on the page, and what was typed there.
#[derive(Default)]
pub(super) struct Open {
    pub(super) limits: Option<Form<LimitsTyped>>,
    pub(super) billing: Option<Form<BillingTyped>>,
    pub(super) new_key: Form<LabelTyped>,
    pub(super) key: Option<String>,
    pub(super) key_label: Option<Form<LabelTyped>>,
    /// About the account that a key is to bill.
    pub(super) key_attach: Problems,
    /// About the key that this account is to have.
    pub(super) attach: Problems,
}

impl AccountDetail<'_> {
    fn has_problems(&self) -> bool {
        let in_key = |card: &KeyCard| card.label.problems.any() || card.attach_problems.any();
        self.limits.problems.any()
            || self.billing.problems.any()
            || self.new_key.problems.any()
            || self.attach_problems.any()
            || self.key.as_ref().is_some_and(in_key)
    }

    fn keys_total_words(&self) -> String {
        grouped(self.keys_total)
    }

    /// Active ones are listed first: where all that are listed are active, there may be more.
    fn has_more_active_keys(&self) -> bool {
        self.has_more_keys() && self.active_keys == self.keys.len()
    }

    fn has_more_keys(&self) -> bool {
        self.keys_total > self.keys.len() as u64
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let open = Open { key: query.get("key").cloned(), ..Open::default() };
    show(&portal, &who, number, StatusCode::OK, &query, open, wants_json(&headers)).await
}

/// The page again, with what was typed and what is wrong with it.
pub(super) async fn put_right(
    portal: &Portal,
    who: &SignedIn,
    id: AccountId,
    open: Open,
) -> Result<Response, PageError> {
    let number = Ok(AccountNumber(id));
    show(portal, who, number, StatusCode::UNPROCESSABLE_ENTITY, &HashMap::new(), open, false).await
}

async fn show(
    portal: &Portal,
    who: &SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    status: StatusCode,
    query: &HashMap<String, String>,
    open: Open,
    as_json: bool,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadAccounts>(who, TheFirm).await?;
    let AccountNumber(id) = number?;
    let now = portal.clock.now();
    let record =
        portal.store.accounts.read_account(permit, id, Month::of(now)).await?.ok_or_else(no_such_account)?;
    let currency = portal.settings.invoice_terms.currency;
    if as_json {
        return Ok(json::account(&record, currency));
    }
    let key = open.key.as_ref().and_then(|prefix| key_card(portal, &record, prefix, &open, now));
    let AccountRecord { account, billing, keys, keys_total, month, events, unattached, .. } = &record;
    let row = |used| KeyRow::new(used, portal, now);
    let detail = AccountDetail {
        frame: Frame::new(portal, who, Section::Accounts),
        notice: what_was_done(query, events),
        id: id.0,
        href: format!("/accounts/{id}"),
        name: account.name.to_string(),
        rpm: grouped(account.limits.requests_per_min.into()),
        tpm: grouped(account.limits.tokens_per_min.into()),
        cap: account.spend_per_month.map(|cap| currency.exact_to_read(cap)),
        month: written_day(Month::of(now).first_day(), "%B"),
        spend: Spend::new(month.cost, account.spend_per_month, currency),
        address: billing.address.as_str().lines().map(str::to_owned).collect(),
        email: billing.email.as_str().to_owned(),
        made: long_moment(account.created_at),
        closed: match account.state {
            AccountState::Open => None,
            AccountState::Closed { at } => Some(long_moment(at)),
        },
        is_drafting: is_drafting(&account.name),
        currency: currency.to_string(),
        limits: open.limits.unwrap_or_else(|| Form::of(LimitsTyped::of(account))),
        billing: open.billing.unwrap_or_else(|| Form::of(BillingTyped::of(billing))),
        new_key: open.new_key,
        keys: keys.iter().map(row).collect(),
        keys_total: *keys_total,
        active_keys: keys.iter().filter(|used| used.key.state == KeyState::Active).count(),
        key,
        unattached: unattached.iter().map(row).collect(),
        attach_problems: open.attach,
        history: events.iter().map(|event| EventRow::new(event, now)).collect(),
        has_whole_history: events.len() < MAX_ACCOUNT_EVENTS as usize,
    };
    Ok(page(status, &detail)?)
}

fn key_card(
    portal: &Portal,
    record: &AccountRecord,
    prefix: &str,
    open: &Open,
    now: UnixMillis,
) -> Option<KeyCard> {
    let used = record.keys.iter().find(|used| used.key.prefix.as_str() == prefix)?;
    let label = LabelTyped { label: used.key.label.clone() };
    let others = record.open_accounts.iter().filter(|choice| choice.id != record.account.id);
    (used.key.state == KeyState::Active).then(|| KeyCard {
        row: KeyRow::new(used, portal, now),
        label: open.key_label.clone().unwrap_or_else(|| Form::of(label)),
        attach_problems: open.key_attach.clone(),
        accounts: others.map(|choice| (choice.id.0, choice.name.to_string())).collect(),
        back: format!("/accounts/{}#keys", record.account.id),
        moves: true,
        is_of_drafting_account: is_drafting(&record.account.name),
    })
}
