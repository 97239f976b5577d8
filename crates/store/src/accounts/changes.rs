//! What can be done with accounts and keys, each a step of a transaction that locks what it changes, so that the line in the
//! history tells what truly was before.

use crate::accounts::history::{self, About, add_event};
use crate::accounts::lookup::lock;
use crate::accounts::{key_changes, limits};
use crate::db::error_codes::is_unique_violation;
use crate::db::{Conn, TxError, query};
use crate::{
    AccountDeed, AccountDone, AccountError, AccountEventId, AccountSubject, BillingChange, BillingContact,
    NewAccount,
};
use chancery_domain::{Account, AccountId, AccountState, Asked};

const CREATE: &str = "INSERT INTO accounts (name, requests_per_min, tokens_per_min, created_at_ms) \
    VALUES ($1, $2, $3, $4) RETURNING *";
const CLOSE: &str = "UPDATE accounts SET closed_at_ms = COALESCE(closed_at_ms, $2) WHERE id = $1 RETURNING *";
pub(crate) const BILLING: &str = "SELECT id, billing_address, billing_email FROM accounts WHERE id = $1";
const SET_BILLING: &str = "UPDATE accounts SET billing_address = COALESCE($2, billing_address), \
    billing_email = COALESCE($3, billing_email) WHERE id = $1 RETURNING id, billing_address, billing_email";

pub(crate) async fn apply(
    conn: &mut Conn<'_>,
    asked: &Asked,
    change: &AccountDeed,
) -> Result<AccountDone, TxError<AccountError>> {
    match change {
        AccountDeed::Make(new) => create(conn, asked, new).await,
        AccountDeed::SetLimits { account, change } => limits::set(conn, asked, *account, *change).await,
        AccountDeed::SetBilling { account, change } => set_billing(conn, asked, *account, change).await,
        AccountDeed::Close(account) => close(conn, asked, *account).await,
        AccountDeed::MakeKey(new) => key_changes::create(conn, asked, new).await,
        AccountDeed::LabelKey { key, label } => key_changes::set_label(conn, asked, key, label).await,
        AccountDeed::AttachKey { key, account } => key_changes::attach(conn, asked, key, *account).await,
        AccountDeed::RevokeKey(key) => key_changes::revoke(conn, asked, key).await,
    }
}

fn done(account: Account, event: Option<AccountEventId>) -> AccountDone {
    AccountDone { subject: AccountSubject::Account(account), event }
}

async fn create(
    conn: &mut Conn<'_>,
    asked: &Asked,
    new: &NewAccount,
) -> Result<AccountDone, TxError<AccountError>> {
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
    let event = add_event(conn, asked, About::account(account.id), line).await?;
    Ok(done(account, Some(event)))
}

async fn set_billing(
    conn: &mut Conn<'_>,
    asked: &Asked,
    id: AccountId,
    change: &BillingChange,
) -> Result<AccountDone, TxError<AccountError>> {
    let account = lock(conn, id).await?;
    let before: BillingContact = query(BILLING).bind(id.0).fetch_one(conn).await?;
    let set = query(SET_BILLING)
        .bind(id.0)
        .bind(change.address.as_ref().map(|address| address.as_str()))
        .bind(change.email.as_ref().map(|email| email.as_str()));
    let after: BillingContact = set.fetch_one(conn).await?;
    let event = match history::billing_set(&before, &after) {
        None => None,
        Some(line) => Some(add_event(conn, asked, About::account(id), line).await?),
    };
    Ok(done(account, event))
}

async fn close(
    conn: &mut Conn<'_>,
    asked: &Asked,
    id: AccountId,
) -> Result<AccountDone, TxError<AccountError>> {
    let before = lock(conn, id).await?;
    let after: Account = query(CLOSE).bind(id.0).bind(asked.at.0).fetch_one(conn).await?;
    let event = match before.state {
        AccountState::Closed { .. } => None,
        AccountState::Open => {
            Some(add_event(conn, asked, About::account(id), history::account_closed()).await?)
        }
    };
    Ok(done(after, event))
}
