//! Sign-ins that wait for a code from an email.
//!
//! Codes are guessed at by whoever knows a password, so wrong ones, and emails, are counted for the identity over all its
//! sign-ins. Every step with a code is one transaction:
//!
//! 1. It locks the identity's row of counts, and then the mailbox's, so that of many who try at once each sees what the one
//!    before has left. The mailbox is counted too, with larger bounds, because a provider that verifies no addresses lets
//!    anybody create any number of identities that claim one mailbox.
//! 2. It reads the sign-in (again), compares, and counts what was wrong. The last wrong code that is allowed deletes all
//!    sign-ins of the identity, or of the mailbox, and until the wrong codes expire none is begun.
//! 3. A right code forgives the wrong ones of its own sign-in and no others: somebody who guesses in another browser gains
//!    nothing by the owner's coming in.
//!
//! An email is counted before it is sent (`next_email`), and its code is in force when the mail server has taken it (`sent`):
//! until then the one before is. An email that could not be sent is no longer counted (`refund_email`).

use crate::db::{Conn, FromRow, Query, Row, corrupt, query};
use crate::{CodeSending, CodeTry, HalfSignIn, MailedCode};
use chancery_domain::{Identity, LocalPath, TokenHash, UnixMillis};
use std::time::Duration;

/// Wrong codes of one identity, over all its sign-ins, after which they are all deleted.
pub const MAX_CODE_TRIES: u32 = 5;

/// Wrong codes for one mailbox, over all identities that claim it, after which all its sign-ins are deleted.
pub const MAX_CODE_TRIES_PER_MAILBOX: u32 = 20;

/// How long after the last wrong code they expire, and so how long an identity that used them up is locked out.
pub const CODE_TRIES_MEMORY: Duration = Duration::from_secs(15 * 60);

/// Between two emails of one sign-in; longer than a mail server may take for one.
pub const CODE_PAUSE: Duration = Duration::from_secs(30);

/// Between an email that the mail server did not take and the next one.
pub const FAILED_LETTER_PAUSE: Duration = Duration::from_secs(5);

/// Emails of one sign-in, the first included.
pub const MAX_CODES_PER_SIGN_IN: u32 = 5;

/// Emails to one identity within `CODES_MEMORY`, unless one of their codes was used.
pub const MAX_CODES_PER_IDENTITY: u32 = 30;

/// Emails to one mailbox within `CODES_MEMORY`, over all identities that claim it.
pub const MAX_CODES_PER_MAILBOX: u32 = 60;

pub const CODES_MEMORY: Duration = Duration::from_secs(60 * 60);

/// What the table says of a sign-in beside what its owner sees.
struct Pending {
    half: HalfSignIn,
    wrong_tries: i64,
    codes_sent: i64,
    next_email_at: UnixMillis,
}

impl FromRow for Pending {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            half: HalfSignIn::from_row(row)?,
            wrong_tries: row.get("wrong_tries")?,
            codes_sent: row.get("codes_sent")?,
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
            sent: u32::try_from(sent).unwrap_or(u32::MAX),
            sent_at: UnixMillis(last_sent_at_ms.unwrap_or(0)),
        })
    }
}

/// All of one identity, or of one mailbox.
struct Counts {
    wrong_tries: i64,
    tries_forgotten_at_ms: i64,
    codes_sent: i64,
    codes_forgotten_at_ms: i64,
}

impl FromRow for Counts {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            wrong_tries: row.get("wrong_tries")?,
            tries_forgotten_at_ms: row.get("tries_forgotten_at_ms")?,
            codes_sent: row.get("codes_sent")?,
            codes_forgotten_at_ms: row.get("codes_forgotten_at_ms")?,
        })
    }
}

impl Counts {
    /// What has expired counts no more.
    fn at(self, now: UnixMillis) -> Self {
        let wrong_tries = if self.tries_forgotten_at_ms > now.0 { self.wrong_tries } else { 0 };
        let is_window_open = self.codes_forgotten_at_ms > now.0;
        Self {
            wrong_tries,
            codes_sent: if is_window_open { self.codes_sent } else { 0 },
            codes_forgotten_at_ms: match is_window_open {
                true => self.codes_forgotten_at_ms,
                false => after(now, CODES_MEMORY),
            },
            ..self
        }
    }

    fn may_send(&self, bounds: Bounds) -> CodeSending {
        if self.wrong_tries >= bounds.tries {
            return CodeSending::NoTriesLeft { until: UnixMillis(self.tries_forgotten_at_ms) };
        }
        if self.codes_sent >= bounds.codes {
            return CodeSending::TooMany { until: UnixMillis(self.codes_forgotten_at_ms) };
        }
        CodeSending::Yes
    }

    fn count_wrong(&mut self, now: UnixMillis) {
        self.wrong_tries += 1;
        self.tries_forgotten_at_ms = after(now, CODE_TRIES_MEMORY);
    }
}

#[derive(Clone, Copy)]
struct Bounds {
    tries: i64,
    codes: i64,
}

const IDENTITY_BOUNDS: Bounds = Bounds { tries: MAX_CODE_TRIES as i64, codes: MAX_CODES_PER_IDENTITY as i64 };
const MAILBOX_BOUNDS: Bounds =
    Bounds { tries: MAX_CODE_TRIES_PER_MAILBOX as i64, codes: MAX_CODES_PER_MAILBOX as i64 };

/// What counts for one sign-in.
struct BothCounts {
    identity: Counts,
    mailbox: Counts,
}

impl BothCounts {
    /// Whether one more email may go out; counts it if so.
    fn send(&mut self) -> CodeSending {
        for (counts, bounds) in [(&self.identity, IDENTITY_BOUNDS), (&self.mailbox, MAILBOX_BOUNDS)] {
            match counts.may_send(bounds) {
                CodeSending::Yes => {}
                denied => return denied,
            }
        }
        self.identity.codes_sent += 1;
        self.mailbox.codes_sent += 1;
        CodeSending::Yes
    }

    fn refund_email(&mut self) {
        for counts in [&mut self.identity, &mut self.mailbox] {
            counts.codes_sent = (counts.codes_sent - 1).max(0);
        }
    }

    /// By a right code of a sign-in with so many wrong ones.
    fn forgive(&mut self, wrong_tries: i64) {
        for counts in [&mut self.identity, &mut self.mailbox] {
            counts.wrong_tries = (counts.wrong_tries - wrong_tries).max(0);
            counts.codes_sent = 0;
        }
    }

    fn tries_left(&self) -> i64 {
        let left = |counts: &Counts, bounds: Bounds| bounds.tries - counts.wrong_tries;
        left(&self.identity, IDENTITY_BOUNDS).min(left(&self.mailbox, MAILBOX_BOUNDS)).max(0)
    }
}

/// The name of a mailbox's counts. No provider's issuer is this: theirs are URLs.
const MAILBOX: &str = "mailbox";

fn after(now: UnixMillis, span: Duration) -> i64 {
    now.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

/// Gives the row as it is, and locks it until the transaction ends.
const LOCK_COUNTS: &str = "INSERT INTO code_counts AS c (issuer, subject, wrong_tries, tries_forgotten_at_ms, codes_sent, \
    codes_forgotten_at_ms) VALUES ($1, $2, 0, 0, 0, 0) ON CONFLICT (issuer, subject) DO UPDATE SET wrong_tries = c.wrong_tries \
    RETURNING wrong_tries, tries_forgotten_at_ms, codes_sent, codes_forgotten_at_ms";
const SET_COUNTS: &str = "UPDATE code_counts SET wrong_tries = $3, tries_forgotten_at_ms = $4, codes_sent = $5, \
    codes_forgotten_at_ms = $6 WHERE issuer = $1 AND subject = $2";
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
/// The times are compared once more at the end, for somebody may count meanwhile.
pub(super) const DELETE_COUNTS: &str = "DELETE FROM code_counts WHERE (issuer, subject) IN (SELECT issuer, subject FROM code_counts \
    WHERE tries_forgotten_at_ms <= $1 AND codes_forgotten_at_ms <= $1 LIMIT $2) \
    AND tries_forgotten_at_ms <= $1 AND codes_forgotten_at_ms <= $1";

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
    let mut counts = lock_both(conn, half, now).await?;
    let sending = counts.send();
    if sending == CodeSending::Yes {
        set_both(conn, half, &counts).await?;
        let begin = query(BEGIN)
            .bind(token.0.as_slice())
            .bind(half.identity.issuer.as_str())
            .bind(half.identity.subject.as_str())
            .bind(half.email.as_str())
            .bind(half.return_to.as_str())
            .bind(half.code.hash.0.as_slice())
            .bind(half.code.expires_at.0)
            .bind(after(now, CODE_PAUSE));
        begin.execute(conn).await?;
    }
    Ok(sending)
}

pub(super) async fn next_email(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<CodeSending, sqlx::Error> {
    let Some((pending, mut counts)) = lock_pending(conn, token, now).await? else {
        return Ok(CodeSending::Gone);
    };
    if pending.codes_sent >= i64::from(MAX_CODES_PER_SIGN_IN) {
        return Ok(CodeSending::NoMore);
    }
    if pending.next_email_at > now {
        return Ok(CodeSending::NotBefore(pending.next_email_at));
    }
    let sending = counts.send();
    if sending == CodeSending::Yes {
        set_both(conn, &pending.half, &counts).await?;
        count_email(conn, token, 1, after(now, CODE_PAUSE)).await?;
    }
    Ok(sending)
}

/// An email was not sent after all.
pub(super) async fn refund_email(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<(), sqlx::Error> {
    let Some((pending, mut counts)) = lock_pending(conn, token, now).await? else { return Ok(()) };
    counts.refund_email();
    set_both(conn, &pending.half, &counts).await?;
    count_email(conn, token, -1, after(now, FAILED_LETTER_PAUSE)).await
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
    if counts.tries_left() == 0 {
        delete_all(conn, &half, &counts).await?;
        return Ok((CodeTry::Destroyed { half, is_news: false }, None));
    }
    if half.code.hash.matches(typed) {
        counts.forgive(wrong_tries);
        set_both(conn, &half, &counts).await?;
        query(END).bind(token.0.as_slice()).execute(conn).await?;
        return Ok((CodeTry::Right(half), None));
    }
    counts.identity.count_wrong(now);
    counts.mailbox.count_wrong(now);
    set_both(conn, &half, &counts).await?;
    let identity = Some(half.identity.clone());
    if counts.tries_left() == 0 {
        delete_all(conn, &half, &counts).await?;
        return Ok((CodeTry::Destroyed { half, is_news: true }, identity));
    }
    query(COUNT_WRONG).bind(token.0.as_slice()).execute(conn).await?;
    Ok((CodeTry::Wrong { left: u32::try_from(counts.tries_left()).unwrap_or(0) }, identity))
}

/// The sign-in and the counts for it. The counts are locked first, by everybody: two who lock one thing each and wait for the
/// other's would wait for ever. So the sign-in is looked at once for its identity, and read again when nobody else can change
/// it.
async fn lock_pending(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    now: UnixMillis,
) -> Result<Option<(Pending, BothCounts)>, sqlx::Error> {
    let seen: Option<HalfSignIn> = find(token, now).fetch_optional(conn).await?;
    let Some(seen) = seen else { return Ok(None) };
    let counts = lock_both(conn, &seen, now).await?;
    let pending: Option<Pending> = find(token, now).fetch_optional(conn).await?;
    Ok(pending.map(|pending| (pending, counts)))
}

/// Everybody locks the identity's before the mailbox's.
async fn lock_both(
    conn: &mut Conn<'_>,
    half: &HalfSignIn,
    now: UnixMillis,
) -> Result<BothCounts, sqlx::Error> {
    let Identity { issuer, subject } = &half.identity;
    let identity: Counts =
        query(LOCK_COUNTS).bind(issuer.as_str()).bind(subject.as_str()).fetch_one(conn).await?;
    let mailbox: Counts = query(LOCK_COUNTS).bind(MAILBOX).bind(half.email.as_str()).fetch_one(conn).await?;
    Ok(BothCounts { identity: identity.at(now), mailbox: mailbox.at(now) })
}

async fn set_both(conn: &mut Conn<'_>, half: &HalfSignIn, counts: &BothCounts) -> Result<(), sqlx::Error> {
    let Identity { issuer, subject } = &half.identity;
    for (issuer, subject, counts) in [
        (issuer.as_str(), subject.as_str(), &counts.identity),
        (MAILBOX, half.email.as_str(), &counts.mailbox),
    ] {
        let set = query(SET_COUNTS)
            .bind(issuer)
            .bind(subject)
            .bind(counts.wrong_tries)
            .bind(counts.tries_forgotten_at_ms)
            .bind(counts.codes_sent)
            .bind(counts.codes_forgotten_at_ms);
        set.execute(conn).await?;
    }
    Ok(())
}

async fn count_email(
    conn: &mut Conn<'_>,
    token: &TokenHash,
    more: i64,
    next_at_ms: i64,
) -> Result<(), sqlx::Error> {
    query(COUNT_EMAIL).bind(token.0.as_slice()).bind(more).bind(next_at_ms).execute(conn).await?;
    Ok(())
}

async fn delete_all(conn: &mut Conn<'_>, half: &HalfSignIn, counts: &BothCounts) -> Result<(), sqlx::Error> {
    let Identity { issuer, subject } = &half.identity;
    query(DELETE_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(conn).await?;
    if counts.mailbox.wrong_tries >= MAILBOX_BOUNDS.tries {
        query(DELETE_OF_MAILBOX).bind(half.email.as_str()).execute(conn).await?;
    }
    Ok(())
}
