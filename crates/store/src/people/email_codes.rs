//! Sign-ins that wait for a code from an email.
//!
//! `chancery_domain::CodeCounts` limits wrong codes and emails. Every step with a code is one transaction:
//!
//! 1. It locks the counts of the identity and of its mailbox, so that each of several concurrent attempts sees the
//!    result of the one before.
//! 2. It reads the sign-in (again), compares the code, and counts a wrong one. The last wrong code that is allowed
//!    deletes all sign-ins of the identity, or of the mailbox. No new one can start until the wrong codes expire.
//! 3. A correct code refunds only the wrong ones of its own sign-in. So someone guessing in another browser gains
//!    nothing when the owner signs in.
//!
//! An email is counted before it is sent (`next_email`). Its code becomes valid when the mail server accepts it
//! (`sent`); until then the previous code stays valid. An email that could not be sent is refunded (`refund_code_email`).

use crate::db::{FromRow, Query, QueryError, Row, Tx, corrupt, from_row, query};
use crate::secrets::column::PENDING_ID_TOKEN;
use crate::secrets::keyring::Keyring;
use crate::throttles::counts as throttles;
use crate::{CodeEmailOutcome, CodeOutcome, PendingEmailCode, SentEmailCode, SessionAuthentication};
use chancery_domain::{
    CODE_EMAIL_INTERVAL, CodeCounts, CodeEmailDenied, CodeOwner, FAILED_CODE_EMAIL_INTERVAL, Identity,
    LocalPath, MAX_CODE_EMAILS_PER_SIGN_IN, Role, ThrottleCount, ThrottleDecision, TokenHash, UnixMillis,
};

/// A sign-in with the columns that its owner does not see.
struct PendingRow {
    pending: PendingEmailCode,
    wrong_attempts: i64,
    next_email_at: UnixMillis,
}

from_row!(PendingRow {
    pending: PendingEmailCode::from_row,
    wrong_attempts,
    next_email_at: "next_email_at_ms"
});

// The ID token is still encrypted (see `with_id_token`).
from_row!(PendingEmailCode {
    identity: Identity::from_row,
    email: parse("email", "an address"),
    return_to: return_path,
    is_email_verified,
    directory_role: parse_optional("directory_role", "a sign-in's role"),
    authentication: SessionAuthentication::from_row,
    code: SentEmailCode::from_row,
    is_email_sent: is_set("last_sent_at_ms")
});

from_row!(SessionAuthentication { authenticated_at: "authenticated_at_ms", sid, id_token });

pub(super) fn return_path(row: &Row<'_>) -> Result<LocalPath, QueryError> {
    let stored: String = row.get("return_to")?;
    LocalPath::parse(&stored)
        .ok_or_else(|| corrupt("a sign-in's return path", format!("{stored:?} is not a path of this portal")))
}

/// Mailbox proofs of the identity provider have the same columns.
impl FromRow for SentEmailCode {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let sent: i64 = row.get("emails_sent")?;
        Ok(Self {
            hash: TokenHash(row.hash("code_hash", "a code's hash")?),
            expires_at: row.get("code_expires_at_ms")?,
            sent: u32::try_from(sent.max(0)).unwrap_or(u32::MAX),
            sent_at: row.time_or_zero("last_sent_at_ms")?,
        })
    }
}

impl From<CodeEmailDenied> for CodeEmailOutcome {
    fn from(denied: CodeEmailDenied) -> Self {
        match denied {
            CodeEmailDenied::LockedOut { until } => Self::LockedOut { until },
            CodeEmailDenied::TooMany { until } => Self::TooMany { until },
            CodeEmailDenied::TooManyToday { until } => Self::TooManyToday { until },
        }
    }
}

const BEGIN: &str = "INSERT INTO pending_email_codes (token_hash, issuer, subject, email, return_to, code_hash, \
    code_expires_at_ms, wrong_attempts, emails_sent, last_sent_at_ms, next_email_at_ms, is_email_verified, directory_role, \
    authenticated_at_ms, sid, id_token) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 1, NULL, $8, $9, $10, $11, $12, $13)";
const FIND: &str = "SELECT issuer, subject, email, return_to, code_hash, code_expires_at_ms, wrong_attempts, emails_sent, \
    last_sent_at_ms, next_email_at_ms, is_email_verified, directory_role, authenticated_at_ms, sid, id_token \
    FROM pending_email_codes WHERE token_hash = $1 AND code_expires_at_ms > $2";
const COUNT_EMAIL: &str = "UPDATE pending_email_codes SET emails_sent = emails_sent + $2, next_email_at_ms = $3 WHERE token_hash = $1";
const SENT: &str = "UPDATE pending_email_codes SET code_hash = $2, code_expires_at_ms = $3, last_sent_at_ms = $4 \
    WHERE token_hash = $1 AND code_expires_at_ms > $4";
const COUNT_WRONG: &str =
    "UPDATE pending_email_codes SET wrong_attempts = wrong_attempts + 1 WHERE token_hash = $1";
const PEOPLE_OF_IDENTITY: &str =
    "SELECT COUNT(*) FROM people WHERE issuer = $1 AND subject = $2 AND removed_at_ms IS NULL";
const END: &str = "DELETE FROM pending_email_codes WHERE token_hash = $1";
const DELETE_OF_IDENTITY: &str = "DELETE FROM pending_email_codes WHERE issuer = $1 AND subject = $2";
const DELETE_OF_MAILBOX: &str = "DELETE FROM pending_email_codes WHERE email = $1";
pub(super) const DELETE_EXPIRED: &str = "DELETE FROM pending_email_codes WHERE token_hash IN \
    (SELECT token_hash FROM pending_email_codes WHERE code_expires_at_ms <= $1 LIMIT $2)";

pub(super) fn find(token: &TokenHash, now: UnixMillis) -> Query {
    query(FIND).bind(token.0.as_slice()).bind(now.0)
}

/// For an email that the mail server accepted.
pub(super) fn sent(token: &TokenHash, hash: &TokenHash, expires_at: UnixMillis, now: UnixMillis) -> Query {
    query(SENT).bind(token.0.as_slice()).bind(hash.0.as_slice()).bind(expires_at.0).bind(now.0)
}

/// Decrypts the ID token of a sign-in that was read.
pub(super) fn with_id_token(
    mut pending: PendingEmailCode,
    token: &TokenHash,
    keyring: &Keyring,
) -> Result<PendingEmailCode, QueryError> {
    if let Some(stored) = &pending.authentication.id_token {
        let id_token = keyring.open(PENDING_ID_TOKEN, &token.0, stored)?;
        pending.authentication.id_token = Some(id_token);
    }
    Ok(pending)
}

pub(super) fn begin(
    tx: &mut Tx<'_>,
    keyring: &Keyring,
    token: &TokenHash,
    pending: &PendingEmailCode,
    now: UnixMillis,
) -> Result<CodeEmailOutcome, QueryError> {
    let counts = lock_counts(tx, pending, now)?;
    let outcome = count_email(tx, pending, &counts, now)?;
    if outcome == CodeEmailOutcome::Allowed {
        let id_token = pending.authentication.id_token.as_deref();
        let id_token = keyring.seal_optional(tx, PENDING_ID_TOKEN, &token.0, id_token)?;
        let begin = query(BEGIN)
            .bind(token.0.as_slice())
            .bind(pending.identity.issuer.as_str())
            .bind(pending.identity.subject.as_str())
            .bind(pending.email.as_str())
            .bind(pending.return_to.as_str())
            .bind(pending.code.hash.0.as_slice())
            .bind(pending.code.expires_at.0)
            .bind(now.after(CODE_EMAIL_INTERVAL).0)
            .bind(pending.is_email_verified)
            .bind(pending.directory_role.map(Role::as_str))
            .bind(pending.authentication.authenticated_at.0)
            .bind(pending.authentication.sid.as_deref())
            .bind(id_token.as_deref());
        begin.execute(tx)?;
    }
    Ok(outcome)
}

pub(super) fn next_email(
    tx: &mut Tx<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<CodeEmailOutcome, QueryError> {
    let Some((pending, counts)) = lock_pending(tx, token, now)? else {
        return Ok(CodeEmailOutcome::Gone);
    };
    if pending.pending.code.sent >= MAX_CODE_EMAILS_PER_SIGN_IN {
        return Ok(CodeEmailOutcome::SignInLimitReached);
    }
    if pending.next_email_at > now {
        return Ok(CodeEmailOutcome::TooSoon(pending.next_email_at));
    }
    let outcome = count_email(tx, &pending.pending, &counts, now)?;
    if outcome == CodeEmailOutcome::Allowed {
        set_next_email(tx, token, 1, now.after(CODE_EMAIL_INTERVAL))?;
    }
    Ok(outcome)
}

/// For an email that could not be sent.
pub(super) fn refund_code_email(
    tx: &mut Tx<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<(), QueryError> {
    let Some((pending, _)) = lock_pending(tx, token, now)? else { return Ok(()) };
    let owner = owner(&pending.pending);
    for key in owner.emails().into_iter().chain(owner.daily_emails()) {
        throttles::refund(key, 1).execute(tx)?;
    }
    set_next_email(tx, token, -1, now.after(FAILED_CODE_EMAIL_INTERVAL))
}

/// Returns also the identity, if the code was wrong.
pub(super) fn verify_code(
    tx: &mut Tx<'_>,
    token: &TokenHash,
    typed: &TokenHash,
    now: UnixMillis,
) -> Result<(CodeOutcome, Option<Identity>), QueryError> {
    let Some((pending, mut counts)) = lock_pending(tx, token, now)? else {
        return Ok((CodeOutcome::Gone, None));
    };
    let PendingRow { pending, wrong_attempts, .. } = pending;
    // The sign-in started just before the last wrong code of another one.
    if counts.remaining_attempts() == 0 {
        delete_all(tx, &pending, &counts)?;
        return Ok((CodeOutcome::LockedOut { pending, is_first: false }, None));
    }
    if pending.code.hash.matches(typed) {
        for key in owner(&pending).wrong_codes() {
            throttles::refund(key, wrong_attempts).execute(tx)?;
        }
        for key in owner(&pending).emails() {
            throttles::refund(key, i64::MAX).execute(tx)?;
        }
        query(END).bind(token.0.as_slice()).execute(tx)?;
        return Ok((CodeOutcome::Accepted(pending), None));
    }
    for (key, count) in owner(&pending).wrong_codes().into_iter().zip(&mut counts.wrong_codes) {
        let (ThrottleDecision::Allowed(counted) | ThrottleDecision::Denied(counted)) =
            throttles::count(tx, key, now)?;
        *count = counted;
    }
    let identity = Some(pending.identity.clone());
    if counts.remaining_attempts() == 0 {
        delete_all(tx, &pending, &counts)?;
        return Ok((CodeOutcome::LockedOut { pending, is_first: true }, identity));
    }
    query(COUNT_WRONG).bind(token.0.as_slice()).execute(tx)?;
    Ok((CodeOutcome::Rejected { left: counts.remaining_attempts() }, identity))
}

fn owner(pending: &PendingEmailCode) -> CodeOwner<'_> {
    CodeOwner { identity: &pending.identity, mailbox: &pending.email }
}

/// The sign-in and its counts. The counts are always locked first, to avoid deadlocks. So the sign-in is read once for
/// its identity, and again once the counts are locked.
fn lock_pending(
    tx: &mut Tx<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<Option<(PendingRow, CodeCounts)>, QueryError> {
    let seen: Option<PendingEmailCode> = find(token, now).fetch_optional(tx)?;
    let Some(seen) = seen else { return Ok(None) };
    let counts = lock_counts(tx, &seen, now)?;
    let pending: Option<PendingRow> = find(token, now).fetch_optional(tx)?;
    Ok(pending.map(|pending| (pending, counts)))
}

/// To avoid deadlocks, lock the identity's counts before the mailbox's.
fn lock_counts(
    tx: &mut Tx<'_>,
    pending: &PendingEmailCode,
    now: UnixMillis,
) -> Result<CodeCounts, QueryError> {
    let none = ThrottleCount { count: 0, expires_at: now };
    let Identity { issuer, subject } = &pending.identity;
    let people = query(PEOPLE_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str());
    let people: u64 = people.fetch_one(tx)?;
    let mut counts = CodeCounts {
        wrong_codes: [none; 4],
        emails: [none; 2],
        daily_emails: [none; 2],
        is_of_person: people > 0,
    };
    for (key, count) in owner(pending).wrong_codes().into_iter().zip(&mut counts.wrong_codes) {
        *count = throttles::lock(tx, key, now)?;
    }
    for (key, count) in owner(pending).emails().into_iter().zip(&mut counts.emails) {
        *count = throttles::lock(tx, key, now)?;
    }
    for (key, count) in owner(pending).daily_emails().into_iter().zip(&mut counts.daily_emails) {
        *count = throttles::lock(tx, key, now)?;
    }
    Ok(counts)
}

/// Counts one more email, if it is allowed.
fn count_email(
    tx: &mut Tx<'_>,
    pending: &PendingEmailCode,
    counts: &CodeCounts,
    now: UnixMillis,
) -> Result<CodeEmailOutcome, QueryError> {
    if let Err(denied) = counts.check_email_allowed() {
        return Ok(denied.into());
    }
    let owner = owner(pending);
    for key in owner.emails().into_iter().chain(owner.daily_emails()) {
        throttles::count(tx, key, now)?;
    }
    Ok(CodeEmailOutcome::Allowed)
}

fn set_next_email(
    tx: &mut Tx<'_>,
    token: &TokenHash,
    more: i64,
    next_at: UnixMillis,
) -> Result<(), QueryError> {
    query(COUNT_EMAIL).bind(token.0.as_slice()).bind(more).bind(next_at.0).execute(tx)?;
    Ok(())
}

fn delete_all(tx: &mut Tx<'_>, pending: &PendingEmailCode, counts: &CodeCounts) -> Result<(), QueryError> {
    let Identity { issuer, subject } = &pending.identity;
    query(DELETE_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(tx)?;
    if counts.remaining_mailbox_attempts() == 0 {
        query(DELETE_OF_MAILBOX).bind(pending.email.as_str()).execute(tx)?;
    }
    Ok(())
}
