//! The limits of an account: per minute, and the cap on what it spends in a month. How they are enforced is not here: see
//! `spending` for the cap; the limits per minute are not the store's.

use crate::accounts::accounts::{lock, the_one};
use crate::accounts::history::{self, About, add_event};
use crate::db::{Conn, Query, TxError, query};
use crate::{AccountDone, AccountSubject, CapChange, LimitsChange};
use chancery_domain::{AccountId, AccountName, Asked};

const UPDATE: &str = "UPDATE accounts SET requests_per_min = COALESCE($2, requests_per_min), \
    tokens_per_min = COALESCE($3, tokens_per_min), \
    spend_per_month_nanos = CASE WHEN $4 THEN $5 ELSE spend_per_month_nanos END WHERE name = $1 RETURNING *";

pub(crate) fn update(name: &AccountName, change: LimitsChange) -> Query<'_> {
    let (changes_cap, cap) = match change.spend_per_month {
        CapChange::Keep => (false, None),
        CapChange::Remove => (true, None),
        CapChange::Set(cap) => (true, Some(cap.0)),
    };
    query(UPDATE)
        .bind(name.as_str())
        .bind(change.requests_per_min.map(i64::from))
        .bind(change.tokens_per_min.map(i64::from))
        .bind(changes_cap)
        .bind(cap)
}

pub(crate) async fn set(
    conn: &mut Conn<'_>,
    asked: &Asked,
    id: AccountId,
    change: LimitsChange,
) -> Result<AccountDone, TxError> {
    let before = lock(conn, id).await?;
    let after = the_one(update(&before.name, change).fetch_all(conn).await?, &before.name)?;
    let event = match history::limits_set(&before, &after) {
        None => None,
        Some(line) => Some(add_event(conn, asked, About::account(id), line).await?),
    };
    Ok(AccountDone { subject: AccountSubject::Account(after), event })
}
