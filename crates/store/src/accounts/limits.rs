//! Changes of an account's limits: per minute, and the monthly spending cap. `spending` enforces the cap; rate limits
//! are not enforced in this crate.

use crate::AccountError;
use crate::accounts::history::{self, EventSubject, add_event};
use crate::accounts::lookup::lock;
use crate::db::{Tx, query};
use crate::{AccountChangeOutcome, AccountSubject, CapChange, LimitsChange};
use chancery_domain::{AccessRequest, Account, AccountId};

const UPDATE: &str = "UPDATE accounts SET requests_per_min = COALESCE($2, requests_per_min), \
    tokens_per_min = COALESCE($3, tokens_per_min), \
    spend_per_month_nanos = CASE WHEN $4 THEN $5 ELSE spend_per_month_nanos END WHERE id = $1 RETURNING *";

pub(crate) fn set(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    id: AccountId,
    change: LimitsChange,
) -> Result<AccountChangeOutcome, AccountError> {
    let before = lock(tx, id)?;
    let (changes_cap, cap) = match change.spend_per_month {
        CapChange::Keep => (false, None),
        CapChange::Remove => (true, None),
        CapChange::Set(cap) => (true, Some(cap.0)),
    };
    let update = query(UPDATE)
        .bind(id.0)
        .bind(change.requests_per_min.map(i64::from))
        .bind(change.tokens_per_min.map(i64::from))
        .bind(changes_cap)
        .bind(cap);
    let after: Account = update.fetch_one(tx)?;
    let event = match history::limits_changed(&before, &after) {
        None => None,
        Some(line) => Some(add_event(tx, access_request, EventSubject::account(id), line)?),
    };
    Ok(AccountChangeOutcome { subject: AccountSubject::Account(after), event })
}
