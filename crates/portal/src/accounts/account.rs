//! `GET /accounts/{account}`: one account with its limits, keys and history. Forms are collapsed by default; `?key=` opens the
//! actions for one of its keys. `?open=key`, `?open=close` and `?key=…&open=rotate` open forms that need a recent
//! authentication (`step_up`).

use super::forms::{BillingInput, LabelInput, LimitsInput};
use super::json;
use super::key_forms::{KeyLimitsInput, NewKeyInput, RotateInput, secret_id};
use super::list::KeyCard;
use super::view::{DisplayDate, EventRow, KeyRow, Spend, change_notice, long_date};
use crate::drafting::settings::is_drafting;
use crate::error::{PageError, account_not_found};
use crate::frame::{Frame, Section};
use crate::path::AccountNumber;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use crate::time_format::{LocalTime, format_day};
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use chancery_domain::{AccountId, AccountState, KeyState, Month, group_thousands};
use chancery_policy::{FirmResource, ReadAccounts};
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
    /// URL of this page.
    href: String,
    name: String,
    rpm: String,
    tpm: String,
    cap: Option<String>,
    month: String,
    spend: Spend,
    address: Vec<String>,
    email: String,
    created: DisplayDate,
    closed: Option<DisplayDate>,
    is_drafting: bool,
    currency: String,
    limits: Form<LimitsInput>,
    billing: Form<BillingInput>,
    is_editing_billing: bool,
    new_key: Option<Form<NewKeyInput>>,
    is_closing: bool,
    keys: Vec<KeyRow>,
    keys_total: u64,
    active_keys: usize,
    key: Option<KeyCard>,
    unassigned_keys: Vec<KeyRow>,
    attach_problems: Problems,
    history: Vec<EventRow>,
    has_whole_history: bool,
}

/// The open forms and their typed values.
#[derive(Default)]
pub(super) struct AccountFormState {
    pub(super) limits: Option<Form<LimitsInput>>,
    pub(super) billing: Option<Form<BillingInput>>,
    pub(super) is_editing_billing: bool,
    /// The month of the draft invoice that needs the billing address.
    pub(super) draft: Option<String>,
    pub(super) new_key: Option<Form<NewKeyInput>>,
    pub(super) is_closing: bool,
    pub(super) key: Option<String>,
    pub(super) is_rotating: bool,
    /// URL of this page, if it opens a form that needs a recent authentication.
    pub(super) step_up: Option<String>,
    pub(super) key_label: Option<Form<LabelInput>>,
    pub(super) key_limits: Option<Form<KeyLimitsInput>>,
    pub(super) key_rotate: Form<RotateInput>,
    /// Problems with the account that a key is to be attached to.
    pub(super) key_attach: Problems,
    /// Problems with the key that is to be attached to this account.
    pub(super) attach: Problems,
}

impl AccountDetail<'_> {
    fn has_problems(&self) -> bool {
        self.limits.problems.any()
            || self.billing.problems.any()
            || self.new_key.as_ref().is_some_and(|form| form.problems.any())
            || self.attach_problems.any()
            || self.key.as_ref().is_some_and(KeyCard::has_problems)
    }

    fn keys_total_text(&self) -> String {
        group_thousands(self.keys_total)
    }

    /// Active keys are listed first: if every listed key is active, there may be more.
    fn has_more_active_keys(&self) -> bool {
        self.has_more_keys() && self.active_keys == self.keys.len()
    }

    fn has_more_keys(&self) -> bool {
        self.keys_total > self.keys.len() as u64
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    headers: HeaderMap,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let open = |form: &str| query.get("open").is_some_and(|open| open == form);
    let key = query.get("key").cloned();
    let is_rotating = key.is_some() && open("rotate");
    let open = AccountFormState {
        new_key: open("key").then(|| Form::of(NewKeyInput::fresh(portal.randomness.as_ref()))),
        is_closing: open("close"),
        is_editing_billing: open("billing"),
        draft: query.get("draft").cloned(),
        is_rotating,
        step_up: (open("key") || open("close") || is_rotating)
            .then(|| uri.path_and_query().map_or_else(String::new, ToString::to_string)),
        key,
        ..AccountFormState::default()
    };
    show(&portal, &signed_in, number, StatusCode::OK, &query, open, wants_json(&headers)).await
}

/// Shows the page again with the typed values and their problems.
pub(super) async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    id: AccountId,
    open: AccountFormState,
) -> Result<Response, PageError> {
    let number = Ok(AccountNumber(id));
    show(portal, signed_in, number, StatusCode::UNPROCESSABLE_ENTITY, &HashMap::new(), open, false).await
}

async fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    status: StatusCode,
    query: &HashMap<String, String>,
    open: AccountFormState,
    as_json: bool,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadAccounts>(signed_in, FirmResource).await?;
    let AccountNumber(id) = number?;
    let now = portal.clock.now();
    let record = portal
        .store
        .accounts
        .read_account(permit, id, Month::containing(now))
        .await?
        .ok_or_else(account_not_found)?;
    let currency = portal.settings.invoice_terms.currency;
    if as_json {
        return Ok(json::account(&record, currency));
    }
    if let Some(page) = &open.step_up
        && let Some(redirect) = step_up::required_for_page(portal, signed_in, page)?
    {
        return Ok(redirect);
    }
    let (names, local) = (PersonNames::read(portal).await?, signed_in.local_time(portal));
    let key = open.key.as_ref().and_then(|prefix| key_card(portal, &record, prefix, &open, &local));
    let AccountRecord { account, billing, keys, keys_total, month, events, unassigned_keys, .. } = &record;
    let row = |used| KeyRow::new(used, portal, &local);
    let detail = AccountDetail {
        frame: Frame::new(portal, signed_in, Section::Accounts),
        notice: change_notice(query, events),
        id: id.0,
        href: format!("/accounts/{id}"),
        name: account.name.to_string(),
        rpm: group_thousands(account.limits.requests_per_min.into()),
        tpm: group_thousands(account.limits.tokens_per_min.into()),
        cap: account.spend_per_month.map(|cap| currency.format_exact(cap)),
        month: format_day(Month::containing(now).first_day(), "%B"),
        spend: Spend::new(month.cost, account.spend_per_month, currency),
        address: billing.address.as_str().lines().map(str::to_owned).collect(),
        email: billing.email.as_str().to_owned(),
        created: long_date(account.created_at, &local),
        closed: match account.state {
            AccountState::Open => None,
            AccountState::Closed { at } => Some(long_date(at, &local)),
        },
        is_drafting: is_drafting(&account.name),
        currency: currency.to_string(),
        limits: open.limits.unwrap_or_else(|| Form::of(LimitsInput::of(account))),
        billing: open.billing.unwrap_or_else(|| {
            Form::of(BillingInput { draft: open.draft.unwrap_or_default(), ..BillingInput::of(billing) })
        }),
        is_editing_billing: open.is_editing_billing,
        new_key: open.new_key,
        is_closing: open.is_closing,
        keys: keys.iter().map(row).collect(),
        keys_total: *keys_total,
        active_keys: keys.iter().filter(|used| used.key.state == KeyState::Active).count(),
        key,
        unassigned_keys: unassigned_keys.iter().map(row).collect(),
        attach_problems: open.attach,
        history: events.iter().map(|event| EventRow::new(event, &names, &local)).collect(),
        has_whole_history: events.len() < MAX_ACCOUNT_EVENTS as usize,
    };
    Ok(page(status, &detail)?)
}

fn key_card(
    portal: &Portal,
    record: &AccountRecord,
    prefix: &str,
    open: &AccountFormState,
    local: &LocalTime,
) -> Option<KeyCard> {
    let used = record.keys.iter().find(|used| used.key.prefix.as_str() == prefix)?;
    let label = LabelInput { label: used.key.label.clone() };
    let others = record.open_accounts.iter().filter(|choice| choice.id != record.account.id);
    (used.key.state == KeyState::Active).then(|| KeyCard {
        row: KeyRow::new(used, portal, local),
        label: open.key_label.clone().unwrap_or_else(|| Form::of(label)),
        limits: open.key_limits.clone().unwrap_or_else(|| Form::of(KeyLimitsInput::of(&used.key.limits))),
        currency: portal.settings.invoice_terms.currency.to_string(),
        overlaps: open.key_rotate.typed.overlap_choices(),
        rotate_problems: open.key_rotate.problems.clone(),
        secret_id: secret_id(&used.key.hash),
        attach_problems: open.key_attach.clone(),
        accounts: others.map(|choice| (choice.id.0, choice.name.to_string())).collect(),
        is_rotating: open.is_rotating,
        page: format!("/accounts/{}", record.account.id),
        back: format!("/accounts/{}#account-keys", record.account.id),
        is_attached: true,
        belongs_to_drafting_account: is_drafting(&record.account.name),
    })
}
