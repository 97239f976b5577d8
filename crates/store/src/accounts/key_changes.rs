//! Changes of keys. Each is a step of a transaction that locks what it changes, so that the history records the true
//! previous values. To avoid deadlocks, lock the key before the account.

use crate::accounts::history::{self, EventSubject, add_event};
use crate::accounts::keys::{self, check_label};
use crate::accounts::lookup::{self, lock_for_read};
use crate::db::error_codes::map_unless_unique_violation;
use crate::db::{Query, Tx, query};
use crate::{
    AccountChangeOutcome, AccountError, AccountEventId, AccountSubject, KeyLimitsChange, KeyRotation, NewKey,
};
use chancery_domain::{
    AccessRequest, Account, AccountId, AccountState, Key, KeyLimits, KeyPrefix, KeyState, PreviousSecret,
};

const CREATE: &str = "INSERT INTO api_keys (prefix, hash, label, created_at_ms, account_id, \
    max_requests_per_min, max_tokens_per_min, max_spend_per_month_nanos, allowed_models, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING *";
const ATTACH: &str = "UPDATE api_keys SET account_id = $2 WHERE id = $1";
const REVOKE: &str = "UPDATE api_keys SET revoked_at_ms = $2 WHERE id = $1";
const SET_LIMITS: &str = "UPDATE api_keys SET max_requests_per_min = $2, max_tokens_per_min = $3, \
    max_spend_per_month_nanos = $4, allowed_models = $5, expires_at_ms = $6 WHERE id = $1";
const ROTATE: &str =
    "UPDATE api_keys SET hash = $2, previous_hash = $3, previous_expires_at_ms = $4 WHERE id = $1";
const SET_LABEL: &str = "UPDATE api_keys SET label = $2 WHERE id = $1";

fn done(key: Key, event: Option<AccountEventId>) -> AccountChangeOutcome {
    AccountChangeOutcome { subject: AccountSubject::Key(key), event }
}

/// The account that a key is to bill, locked so that it stays open.
fn lock_open_account(tx: &mut Tx<'_>, id: AccountId) -> Result<Account, AccountError> {
    match lock_for_read(tx, id)? {
        None => Err(AccountError::NoSuchAccountId(id)),
        Some(Account { name, state: AccountState::Closed { .. }, .. }) => {
            Err(AccountError::AccountClosed(name))
        }
        Some(account) => Ok(account),
    }
}

pub(crate) fn create(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    new: &NewKey,
) -> Result<AccountChangeOutcome, AccountError> {
    check_label(&new.label)?;
    if let Some(account) = new.account {
        lock_open_account(tx, account)?;
    }
    let insert = query(CREATE)
        .bind(new.prefix.as_str())
        .bind(new.hash.0.as_slice())
        .bind(new.label.as_str())
        .bind(new.created_at.0)
        .bind(new.account.map(|account| account.0));
    let insert = bind_limits(insert, &new.limits);
    let key: Key = insert.fetch_one(tx).map_err(|error| {
        map_unless_unique_violation(&error, || AccountError::KeyPrefixTaken(new.prefix.clone()))
    })?;
    let event = add_event(tx, access_request, EventSubject::key(&key), history::key_created(&key))?;
    Ok(done(key, Some(event)))
}

/// In the order of the columns.
fn bind_limits(query: Query, limits: &KeyLimits) -> Query {
    query
        .bind(limits.requests_per_min.map(i64::from))
        .bind(limits.tokens_per_min.map(i64::from))
        .bind(limits.spend_per_month.map(|cap| cap.0))
        .bind(limits.models.as_ref().map(ToString::to_string))
        .bind(limits.expires_at.map(|at| at.0))
}

pub(crate) fn set_limits(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    key: &KeyPrefix,
    change: KeyLimitsChange,
) -> Result<AccountChangeOutcome, AccountError> {
    let key = keys::lock(tx, key)?;
    let limits = change.apply(key.limits.clone());
    let Some(line) = history::key_limits_changed(&key, &limits) else { return Ok(done(key, None)) };
    bind_limits(query(SET_LIMITS).bind(key.id.0), &limits).execute(tx)?;
    let event = add_event(tx, access_request, EventSubject::key(&key), line)?;
    Ok(done(Key { limits, ..key }, Some(event)))
}

/// A key has at most two secrets, so a rotation during the overlap of an earlier one ends that overlap. Callers may not
/// have switched yet, so this must be requested.
pub(crate) fn rotate(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    rotation: &KeyRotation,
) -> Result<AccountChangeOutcome, AccountError> {
    let key = keys::lock(tx, &rotation.key)?;
    if let KeyState::Revoked { .. } = key.state {
        return Err(AccountError::KeyRevoked(key.prefix));
    }
    if !key.hash.matches(&rotation.replaces) {
        return Err(AccountError::KeyAlreadyRotated(key.prefix));
    }
    let running_overlap = key.overlap_ends_at(access_request.at);
    if let Some(ends_at) = running_overlap
        && !rotation.ends_running_overlap
    {
        return Err(AccountError::OverlapRunning { key: key.prefix, ends_at });
    }
    let previous = PreviousSecret { hash: key.hash, expires_at: rotation.overlap_ends_at };
    let update = query(ROTATE)
        .bind(key.id.0)
        .bind(rotation.hash.0.as_slice())
        .bind(previous.hash.0.as_slice())
        .bind(previous.expires_at.0);
    update.execute(tx)?;
    let key = Key { hash: rotation.hash, previous_secret: Some(previous), ..key };
    let line = history::key_rotated(&key, access_request.at, running_overlap.is_some());
    let event = add_event(tx, access_request, EventSubject::key(&key), line)?;
    Ok(done(key, Some(event)))
}

pub(crate) fn set_label(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    key: &KeyPrefix,
    label: &str,
) -> Result<AccountChangeOutcome, AccountError> {
    check_label(label)?;
    let key = keys::lock(tx, key)?;
    let Some(line) = history::key_labelled(&key, label) else { return Ok(done(key, None)) };
    query(SET_LABEL).bind(key.id.0).bind(label).execute(tx)?;
    let event = add_event(tx, access_request, EventSubject::key(&key), line)?;
    Ok(done(Key { label: label.to_owned(), ..key }, Some(event)))
}

pub(crate) fn attach(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    key: &KeyPrefix,
    to: AccountId,
) -> Result<AccountChangeOutcome, AccountError> {
    let key = keys::lock(tx, key)?;
    if let KeyState::Revoked { .. } = key.state {
        return Err(AccountError::KeyRevoked(key.prefix));
    }
    let to = lock_open_account(tx, to)?;
    if key.account == Some(to.id) {
        return Ok(done(key, None));
    }
    query(ATTACH).bind(key.id.0).bind(to.id.0).execute(tx)?;
    let from: Option<Account> = match key.account {
        None => None,
        Some(from) => Some(query(lookup::BY_ID).bind(from.0).fetch_one(tx)?),
    };
    if from.is_some() {
        add_event(tx, access_request, EventSubject::key(&key), history::key_moved_away(&key, &to.name))?;
    }
    let line = history::key_attached(&key, from.as_ref().map(|from| &from.name));
    let key = Key { account: Some(to.id), ..key };
    let event = add_event(tx, access_request, EventSubject::key(&key), line)?;
    Ok(done(key, Some(event)))
}

pub(crate) fn revoke(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    key: &KeyPrefix,
) -> Result<AccountChangeOutcome, AccountError> {
    let key = keys::lock(tx, key)?;
    if let KeyState::Revoked { .. } = key.state {
        return Ok(done(key, None));
    }
    query(REVOKE).bind(key.id.0).bind(access_request.at.0).execute(tx)?;
    let event = add_event(tx, access_request, EventSubject::key(&key), history::key_revoked(&key))?;
    Ok(done(Key { state: KeyState::Revoked { at: access_request.at }, ..key }, Some(event)))
}
