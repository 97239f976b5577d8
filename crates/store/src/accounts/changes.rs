//! Changes of accounts and keys. Each is a step of a transaction that locks what it changes, so that the history
//! records the true previous values.

use crate::accounts::history::{self, EventSubject, add_event};
use crate::accounts::lookup::lock;
use crate::accounts::{key_changes, limits};
use crate::db::error_codes::is_unique_violation;
use crate::db::{Conn, TxError, query};
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

pub(crate) async fn apply(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    change: &AccountChange,
) -> Result<AccountChangeOutcome, TxError<AccountError>> {
    match change {
        AccountChange::CreateAccount(new) => create(conn, access_request, new).await,
        AccountChange::SetLimits { account, change } => {
            limits::set(conn, access_request, *account, *change).await
        }
        AccountChange::SetBilling { account, change } => {
            set_billing(conn, access_request, *account, change).await
        }
        AccountChange::Close(account) => close(conn, access_request, *account).await,
        AccountChange::CreateKey(new) => key_changes::create(conn, access_request, new).await,
        AccountChange::LabelKey { key, label } => {
            key_changes::set_label(conn, access_request, key, label).await
        }
        AccountChange::AttachKey { key, account } => {
            key_changes::attach(conn, access_request, key, *account).await
        }
        AccountChange::RevokeKey(key) => key_changes::revoke(conn, access_request, key).await,
        AccountChange::SetKeyLimits { key, change } => {
            key_changes::set_limits(conn, access_request, key, change.clone()).await
        }
        AccountChange::RotateKey(rotation) => key_changes::rotate(conn, access_request, rotation).await,
    }
}

fn done(account: Account, event: Option<AccountEventId>) -> AccountChangeOutcome {
    AccountChangeOutcome { subject: AccountSubject::Account(account), event }
}

async fn create(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    new: &NewAccount,
) -> Result<AccountChangeOutcome, TxError<AccountError>> {
    let insert = query(CREATE)
        .bind(new.name.as_str())
        .bind(i64::from(new.limits.requests_per_min))
        .bind(i64::from(new.limits.tokens_per_min))
        .bind(new.created_at.0);
    let account: Account =
        insert.fetch_one(conn).await.map_err(|error| match is_unique_violation(&error) {
            true => TxError::Rejected(AccountError::AccountNameTaken(new.name.clone())),
            false => error.into(),
        })?;
    let line = history::account_created(account.limits);
    let event = add_event(conn, access_request, EventSubject::account(account.id), line).await?;
    Ok(done(account, Some(event)))
}

async fn set_billing(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    id: AccountId,
    change: &BillingChange,
) -> Result<AccountChangeOutcome, TxError<AccountError>> {
    let account = lock(conn, id).await?;
    let before: BillingContact = query(BILLING).bind(id.0).fetch_one(conn).await?;
    let set = query(SET_BILLING)
        .bind(id.0)
        .bind(change.address.as_ref().map(|address| address.as_str()))
        .bind(change.email.as_ref().map(|email| email.as_str()));
    let after: BillingContact = set.fetch_one(conn).await?;
    let event = match history::billing_changed(&before, &after) {
        None => None,
        Some(line) => Some(add_event(conn, access_request, EventSubject::account(id), line).await?),
    };
    Ok(done(account, event))
}

async fn close(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    id: AccountId,
) -> Result<AccountChangeOutcome, TxError<AccountError>> {
    let before = lock(conn, id).await?;
    let after: Account = query(CLOSE).bind(id.0).bind(access_request.at.0).fetch_one(conn).await?;
    let event = match before.state {
        AccountState::Closed { .. } => None,
        AccountState::Open => {
            Some(add_event(conn, access_request, EventSubject::account(id), history::account_closed()).await?)
        }
    };
    Ok(done(after, event))
}
