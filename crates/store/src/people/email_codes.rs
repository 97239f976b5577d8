//! Sign-ins that wait for a code from an email.
//!
//! How many codes may be wrong, and how many emails go out, is the policy of `chancery_domain::CodeCounts`. Every step with a
//! code is one transaction:
//!
//! 1. It locks the counts of the identity and of its mailbox, so that of many who try at once each sees what the one before has
//!    left.
//! 2. It reads the sign-in (again), compares, and counts what was wrong. The last wrong code that is allowed deletes all
//!    sign-ins of the identity, or of the mailbox, and until the wrong codes expire none is begun.
//! 3. A right code refunds the wrong ones of its own sign-in and no others: somebody who guesses in another browser gains
//!    nothing by the owner's coming in.
//!
//! An email is counted before it is sent (`next_email`), and its code is in force when the mail server has taken it (`sent`):
//! until then the one before is. An email that could not be sent is no longer counted (`refund_email`).

use crate::db::{Conn, FromRow, Query, Row, corrupt, query};
use crate::throttles::counts as throttles;
use crate::{CodeSending, CodeTry, HalfSignIn, MailedCode};
use chancery_domain::{
    CodeCounts, CodeEmailDenied, CodeOwner, EMAIL_PAUSE, FAILED_EMAIL_PAUSE, Identity, LocalPath,
    MAX_EMAILS_PER_SIGN_IN, ThrottleDecision, TokenHash, UnixMillis,
};

/// What the table says of a sign-in beside what its owner sees.
struct Pending {
    half: HalfSignIn,
    wrong_tries: i64,
    next_email_at: UnixMillis,
}

impl FromRow for Pending {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            half: HalfSignIn::from_row(row)?,
            wrong_tries: row.get("wrong_tries")?,
            next_email_at: UnixMillis(row.get("next_letter_at_ms")?),
        })
    }
}

impl FromRow for HalfSignIn {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let email: String = row.get("email")?;
        let last_sent_at_ms: Option<i64> = row.get("last_sent_at_ms")?;
        Ok(Self {
            identity: Identity { issuer: row.get("issuer")?, subject: row.get("subject")? },
            email: email.parse().map_err(|error| corrupt("an address", error))?,
            return_to: return_path(row)?,
            code: MailedCode::from_row(row)?,
            is_code_sent: last_sent_at_ms.is_some(),
        })
    }
}

pub(super) fn return_path(row: &Row) -> Result<LocalPath, sqlx::Error> {
    let stored: String = row.get("return_to")?;
    LocalPath::parse(&stored)
        .ok_or_else(|| corrupt("a sign-in's return path", format!("{stored:?} is none of this portal")))
}

/// The identity provider's mailbox proofs have the same columns.
impl FromRow for MailedCode {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let hash: Vec<u8> = row.get("code_hash")?;
        let hash = hash.try_into().map_err(|bytes: Vec<u8>| {
            corrupt("a code's hash", format!("it has {} bytes instead of 32", bytes.len()))
        })?;
        let sent: i64 = row.get("codes_sent")?;
        let last_sent_at_ms: Option<i64> = row.get("last_sent_at_ms")?;
        Ok(Self {
            hash: TokenHash(hash),
            expires_at: UnixMillis(row.get("code_expires_at_ms")?),
            sent: u32::try_from(sent.max(0)).unwrap_or(u32::MAX),
            sent_at: UnixMillis(last_sent_at_ms.unwrap_or(0)),
        })
    }
}

impl From<CodeEmailDenied> for CodeSending {
    fn from(denied: CodeEmailDenied) -> Self {
        match denied {
            CodeEmailDenied::LockedOut { until } => Self::NoTriesLeft { until },
            CodeEmailDenied::TooMany { until } => Self::TooMany { until },
        }
    }
}

const BEGIN: &str = "INSERT INTO half_sign_ins (token_hash, issuer, subject, email, return_to, code_hash, \
    code_expires_at_ms, wrong_tries, codes_sent, last_sent_at_ms, next_letter_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 1, NULL, $8)";
const FIND: &str = "SELECT issuer, subject, email, return_to, code_hash, code_expires_at_ms, wrong_tries, codes_sent, \
    last_sent_at_ms, next_letter_at_ms FROM half_sign_ins WHERE token_hash = $1 AND code_expires_at_ms > $2";
const COUNT_EMAIL: &str =
    "UPDATE half_sign_ins SET codes_sent = codes_sent + $2, next_letter_at_ms = $3 WHERE token_hash = $1";
const SENT: &str = "UPDATE half_sign_ins SET code_hash = $2, code_expires_at_ms = $3, last_sent_at_ms = $4 \
    WHERE token_hash = $1 AND code_expires_at_ms > $4";
const COUNT_WRONG: &str = "UPDATE half_sign_ins SET wrong_tries = wrong_tries + 1 WHERE token_hash = $1";
const END: &str = "DELETE FROM half_sign_ins WHERE token_hash = $1";
const DELETE_OF_IDENTITY: &str = "DELETE FROM half_sign_ins WHERE issuer = $1 AND subject = $2";
const DELETE_OF_MAILBOX: &str = "DELETE FROM half_sign_ins WHERE email = $1";
pub(super) const DELETE_EXPIRED: &str = "DELETE FROM half_sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM half_sign_ins WHERE code_expires_at_ms <= $1 LIMIT $2)";

pub(super) fn find(token: &TokenHash, now: UnixMillis) -> Query<'_> {
    query(FIND).bind(token.0.as_slice()).bind(now.0)
}

/// The mail server has taken an email with this code.
pub(super) fn sent<'q>(
    token: &'q TokenHash,
    hash: &'q TokenHash,
    expires_at: UnixMillis,
    now: UnixMillis,
) -> Query<'q> {
    query(SENT).bind(token.0.as_slice()).bind(hash.0.as_slice()).bind(expires_at.0).bind(now.0)
}

pub(super) async fn begin(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    half: &HalfSignIn,
    now: UnixMillis,
) -> Result<CodeSending, sqlx::Error> {
    let counts = lock_counts(conn, half, now).await?;
    let sending = count_email(conn, half, &counts, now).await?;
    if sending == CodeSending::Yes {
        let begin = query(BEGIN)
            .bind(token.0.as_slice())
            .bind(half.identity.issuer.as_str())
            .bind(half.identity.subject.as_str())
            .bind(half.email.as_str())
            .bind(half.return_to.as_str())
            .bind(half.code.hash.0.as_slice())
            .bind(half.code.expires_at.0)
            .bind(now.after(EMAIL_PAUSE).0);
        begin.execute(conn).await?;
    }
    Ok(sending)
}

pub(super) async fn next_email(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<CodeSending, sqlx::Error> {
    let Some((pending, counts)) = lock_pending(conn, token, now).await? else {
        return Ok(CodeSending::Gone);
    };
    if pending.half.code.sent >= MAX_EMAILS_PER_SIGN_IN {
        return Ok(CodeSending::NoMore);
    }
    if pending.next_email_at > now {
        return Ok(CodeSending::NotBefore(pending.next_email_at));
    }
    let sending = count_email(conn, &pending.half, &counts, now).await?;
    if sending == CodeSending::Yes {
        set_next_email(conn, token, 1, now.after(EMAIL_PAUSE)).await?;
    }
    Ok(sending)
}

/// An email was not sent after all.
pub(super) async fn refund_email(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<(), sqlx::Error> {
    let Some((pending, _)) = lock_pending(conn, token, now).await? else { return Ok(()) };
    for key in owner(&pending.half).emails() {
        throttles::refund(key, 1).execute(conn).await?;
    }
    set_next_email(conn, token, -1, now.after(FAILED_EMAIL_PAUSE)).await
}

/// With the identity whose code it was not, if it was wrong.
pub(super) async fn try_code(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    typed: &TokenHash,
    now: UnixMillis,
) -> Result<(CodeTry, Option<Identity>), sqlx::Error> {
    let Some((pending, mut counts)) = lock_pending(conn, token, now).await? else {
        return Ok((CodeTry::Gone, None));
    };
    let Pending { half, wrong_tries, .. } = pending;
    // A sign-in that was begun just before the last wrong code of another.
    if counts.codes_left() == 0 {
        delete_all(conn, &half, &counts).await?;
        return Ok((CodeTry::Destroyed { half, is_news: false }, None));
    }
    if half.code.hash.matches(typed) {
        for key in owner(&half).wrong_codes() {
            throttles::refund(key, wrong_tries).execute(conn).await?;
        }
        for key in owner(&half).emails() {
            throttles::refund(key, i64::MAX).execute(conn).await?;
        }
        query(END).bind(token.0.as_slice()).execute(conn).await?;
        return Ok((CodeTry::Right(half), None));
    }
    for (key, count) in owner(&half).wrong_codes().into_iter().zip(&mut counts.wrong_codes) {
        let (ThrottleDecision::Allowed(counted) | ThrottleDecision::Denied(counted)) =
            throttles::count(conn, key, now).await?;
        *count = counted;
    }
    let identity = Some(half.identity.clone());
    if counts.codes_left() == 0 {
        delete_all(conn, &half, &counts).await?;
        return Ok((CodeTry::Destroyed { half, is_news: true }, identity));
    }
    query(COUNT_WRONG).bind(token.0.as_slice()).execute(conn).await?;
    Ok((CodeTry::Wrong { left: counts.codes_left() }, identity))
}

fn owner(half: &HalfSignIn) -> CodeOwner<'_> {
    CodeOwner { identity: &half.identity, mailbox: &half.email }
}

/// The sign-in and the counts for it. The counts are locked first, by everybody: two who lock one thing each and wait for the
/// other's would wait for ever. So the sign-in is looked at once for its identity, and read again when nobody else can change
/// it.
async fn lock_pending(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<Option<(Pending, CodeCounts)>, sqlx::Error> {
    let seen: Option<HalfSignIn> = find(token, now).fetch_optional(conn).await?;
    let Some(seen) = seen else { return Ok(None) };
    let counts = lock_counts(conn, &seen, now).await?;
    let pending: Option<Pending> = find(token, now).fetch_optional(conn).await?;
    Ok(pending.map(|pending| (pending, counts)))
}

/// Everybody locks the identity's before the mailbox's.
async fn lock_counts(
    conn: &mut Conn<'_>,
    half: &HalfSignIn,
    now: UnixMillis,
) -> Result<CodeCounts, sqlx::Error> {
    let [wrong_of_identity, wrong_of_mailbox] = owner(half).wrong_codes();
    let [emails_of_identity, emails_of_mailbox] = owner(half).emails();
    Ok(CodeCounts {
        wrong_codes: [
            throttles::lock(conn, wrong_of_identity, now).await?,
            throttles::lock(conn, wrong_of_mailbox, now).await?,
        ],
        emails: [
            throttles::lock(conn, emails_of_identity, now).await?,
            throttles::lock(conn, emails_of_mailbox, now).await?,
        ],
    })
}

/// Whether one more email may go out; counts it if so.
async fn count_email(
    conn: &mut Conn<'_>,
    half: &HalfSignIn,
    counts: &CodeCounts,
    now: UnixMillis,
) -> Result<CodeSending, sqlx::Error> {
    if let Err(denied) = counts.may_send() {
        return Ok(denied.into());
    }
    for key in owner(half).emails() {
        throttles::count(conn, key, now).await?;
    }
    Ok(CodeSending::Yes)
}

async fn set_next_email(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    more: i64,
    next_at: UnixMillis,
) -> Result<(), sqlx::Error> {
    query(COUNT_EMAIL).bind(token.0.as_slice()).bind(more).bind(next_at.0).execute(conn).await?;
    Ok(())
}

async fn delete_all(conn: &mut Conn<'_>, half: &HalfSignIn, counts: &CodeCounts) -> Result<(), sqlx::Error> {
    let Identity { issuer, subject } = &half.identity;
    query(DELETE_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(conn).await?;
    if counts.codes_left_for_mailbox() == 0 {
        query(DELETE_OF_MAILBOX).bind(half.email.as_str()).execute(conn).await?;
    }
    Ok(())
}
