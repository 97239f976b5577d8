//! Changes of accounts and keys. Each is a step of a transaction that locks what it changes, so that the history
//! records the true previous values.

use crate::accounts::history::{self, EventSubject, add_event};
use crate::accounts::lookup::lock;
use crate::accounts::{key_changes, limits};
use crate::db::error_codes::map_unless_unique_violation;
use crate::db::{Tx, query};
use crate::{
    AccountChange, AccountChangeOutcome, AccountError, AccountEventId, AccountSubject, BillingChange,
    BillingContact, NewAccount,
};
use chancery_domain::{AccessRequest, Account, AccountId, AccountState};

const CREATE: &str = "INSERT INTO accounts (name, requests_per_min, tokens_per_min, created_at_ms) \
    VALUES ($1, $2, $3, $4) RETURNING *";
const CLOSE: &str = "UPDATE accounts SET closed_at_ms = COALESCE(closed_at_ms, $2) WHERE id = $1 RETURNING *";
pub(crate) const BILLING: &str = "SELECT id, billing_address, billing_email FROM accounts WHERE id = $1";
const SET_BILLING: &str = "UPDATE accounts SET billing_address = COALESCE($2, billing_address), \
    billing_email = COALESCE($3, billing_email) WHERE id = $1 RETURNING id, billing_address, billing_email";

pub(crate) fn apply(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    change: &AccountChange,
) -> Result<AccountChangeOutcome, AccountError> {
    match change {
        AccountChange::CreateAccount(new) => create(tx, access_request, new),
        AccountChange::SetLimits { account, change } => limits::set(tx, access_request, *account, *change),
        AccountChange::SetBilling { account, change } => set_billing(tx, access_request, *account, change),
        AccountChange::Close(account) => close(tx, access_request, *account),
        AccountChange::CreateKey(new) => key_changes::create(tx, access_request, new),
        AccountChange::LabelKey { key, label } => key_changes::set_label(tx, access_request, key, label),
        AccountChange::AttachKey { key, account } => key_changes::attach(tx, access_request, key, *account),
        AccountChange::RevokeKey(key) => key_changes::revoke(tx, access_request, key),
        AccountChange::SetKeyLimits { key, change } => {
            key_changes::set_limits(tx, access_request, key, change.clone())
        }
        AccountChange::RotateKey(rotation) => key_changes::rotate(tx, access_request, rotation),
    }
}

fn done(account: Account, event: Option<AccountEventId>) -> AccountChangeOutcome {
    AccountChangeOutcome { subject: AccountSubject::Account(account), event }
}

fn create(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    new: &NewAccount,
) -> Result<AccountChangeOutcome, AccountError> {
    let insert = query(CREATE)
        .bind(new.name.as_str())
        .bind(i64::from(new.limits.requests_per_min))
        .bind(i64::from(new.limits.tokens_per_min))
        .bind(new.created_at.0);
    let account: Account = insert.fetch_one(tx).map_err(|error| {
        map_unless_unique_violation(&error, || AccountError::AccountNameTaken(new.name.clone()))
    })?;
    let line = history::account_created(account.limits);
    let event = add_event(tx, access_request, EventSubject::account(account.id), line)?;
    Ok(done(account, Some(event)))
}

fn set_billing(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    id: AccountId,
    change: &BillingChange,
) -> Result<AccountChangeOutcome, AccountError> {
    let account = lock(tx, id)?;
    let before: BillingContact = query(BILLING).bind(id.0).fetch_one(tx)?;
    let set = query(SET_BILLING)
        .bind(id.0)
        .bind(change.address.as_ref().map(|address| address.as_str()))
        .bind(change.email.as_ref().map(|email| email.as_str()));
    let after: BillingContact = set.fetch_one(tx)?;
    let event = match history::billing_changed(&before, &after) {
        None => None,
        Some(line) => Some(add_event(tx, access_request, EventSubject::account(id), line)?),
    };
    Ok(done(account, event))
}

fn close(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    id: AccountId,
) -> Result<AccountChangeOutcome, AccountError> {
    let before = lock(tx, id)?;
    let after: Account = query(CLOSE).bind(id.0).bind(access_request.at.0).fetch_one(tx)?;
    let event = match before.state {
        AccountState::Closed { .. } => None,
        AccountState::Open => {
            Some(add_event(tx, access_request, EventSubject::account(id), history::account_closed())?)
        }
    };
    Ok(done(after, event))
}
