//! Checks again, in the transaction of a step, that its principal is the one that the policy decided for: a person in the
//! same role who is not removed. A person who was demoted or removed after the decision gets nothing, and the decision is
//! not recorded.
//!
//! The check is a plain read and locks nothing. On PostgreSQL a lock on the principal could deadlock with steps that
//! change people: two partners who change each other's role would each hold their own row and wait for the other's. A
//! plain read sees every change that is committed before it. One that is committed later is ordered after this step.
//! SQLite has one writer, so nothing changes between the check and the commit.

use crate::DbError;
use crate::db::{Tx, query};
use chancery_domain::{AuditRow, Decision, Principal};

const UNCHANGED: &str = "SELECT COUNT(*) FROM people WHERE id = $1 AND role = $2 AND removed_at_ms IS NULL";

/// Fails with `PrincipalChanged`. The operator cannot be removed.
pub(crate) fn ensure_principal_unchanged<E: From<DbError>>(tx: &mut Tx<'_>, by: Principal) -> Result<(), E> {
    let Principal::Person { id, role } = by else { return Ok(()) };
    let unchanged = query(UNCHANGED).bind(id.0).bind(role.as_str()).fetch_one::<i64>(tx);
    match unchanged.map_err(DbError::from)? {
        0 => Err(DbError::PrincipalChanged(id).into()),
        _ => Ok(()),
    }
}

pub(crate) fn ensure_principals_unchanged<E: From<DbError>>(
    tx: &mut Tx<'_>,
    principals: &[Principal],
) -> Result<(), E> {
    for by in principals {
        ensure_principal_unchanged::<E>(tx, *by)?;
    }
    Ok(())
}

/// Each principal once. A step has few of them, usually one.
pub(crate) fn distinct(principals: impl IntoIterator<Item = Principal>) -> Vec<Principal> {
    let mut found = Vec::new();
    for by in principals {
        if !found.contains(&by) {
            found.push(by);
        }
    }
    found
}

/// The principals without those whom the step itself changed, as its rows say.
pub(crate) fn not_changed_by(rows: &[AuditRow], principals: &[Principal]) -> Vec<Principal> {
    let is_subject = |by: Principal| {
        rows.iter()
            .filter_map(AuditRow::event)
            .any(|event| event.subject.is_some() && event.subject == by.person())
    };
    principals.iter().copied().filter(|by| !is_subject(*by)).collect()
}

/// The principals of allowed decisions. Denials and events give nobody access.
pub(crate) fn allowed_principals(rows: &[AuditRow]) -> Vec<Principal> {
    let decided = rows.iter().filter_map(AuditRow::as_decision);
    distinct(decided.filter(|row| row.decision == Decision::Allowed).map(|row| row.access_request.by))
}
