//! The queries about sign-ins under way.
//!
//! Codes from a mail are guessed at by whoever knows a password, so wrong tries, and letters, are counted for the identity
//! over all its sign-ins. Every step with a code is one transaction:
//!
//! 1. It takes the identity's row of counts, and then the mailbox's, so that of many who try at once each sees what the one
//!    before has left. The mailbox is counted too, with larger bounds, because a provider that verifies no addresses lets
//!    anybody make any number of identities that claim one mailbox.
//! 2. It reads the sign-in (again), compares, and counts what was wrong. The last wrong try that is allowed destroys all
//!    sign-ins of the identity, or of the mailbox, and until the tries are forgotten none is begun.
//! 3. A right code forgives the wrong tries of its own sign-in and no others: somebody who guesses in another browser gains
//!    nothing by the owner's coming in.
//!
//! A letter is counted before it is sent (`may_send_code`), and its code is in force when the mail server has taken it
//! (`code_was_sent`): until then the one before is. A letter that could not be sent is no longer counted.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::db::transaction::BeginWriting;
use crate::{CodeSending, CodeTry, HalfSignIn, MailedCode, SignIn, SignIns, StoreError};
use chancery_domain::{Identity, LocalPath, TokenHash, UnixMillis};
use sqlx::Connection;
use std::time::Duration;

/// Wrong tries of one identity, over all its sign-ins, after which they are all destroyed.
pub const MAX_CODE_TRIES: u32 = 5;

/// Wrong tries with codes for one mailbox, over all identities that claim it, after which all its sign-ins are destroyed.
pub const MAX_CODE_TRIES_PER_MAILBOX: u32 = 20;

/// How long after the last wrong try they are forgotten, and so how long an identity that used them up is kept out.
pub const CODE_TRIES_MEMORY: Duration = Duration::from_secs(15 * 60);

/// Between two letters of one sign-in; longer than a mail server may take for one.
pub const CODE_PAUSE: Duration = Duration::from_secs(30);

/// Between a letter that the mail server did not take and the next one.
pub const FAILED_LETTER_PAUSE: Duration = Duration::from_secs(5);

/// Letters of one sign-in, the first included.
pub const MAX_CODES_PER_SIGN_IN: u32 = 5;

/// Letters to one identity within `CODES_MEMORY`, unless one of their codes was used.
pub const MAX_CODES_PER_IDENTITY: u32 = 30;

/// Letters to one mailbox within `CODES_MEMORY`, over all identities that claim it.
pub const MAX_CODES_PER_MAILBOX: u32 = 60;

pub const CODES_MEMORY: Duration = Duration::from_secs(60 * 60);

/// Sign-ins under way that are worth keeping. Anybody can begin one, so the oldest go when there are more.
pub const MAX_SIGN_INS: u32 = 100_000;

stored_row! {
    struct StoredSignIn {
        state: String,
        nonce: String,
        pkce_verifier: String,
        return_to: String,
        expires_at_ms: i64,
    }
}

stored_row! {
    struct StoredHalfSignIn {
        issuer: String,
        subject: String,
        email: String,
        return_to: String,
        code_hash: Vec<u8>,
        code_expires_at_ms: i64,
        wrong_tries: i64,
        codes_sent: i64,
        last_sent_at_ms: Option<i64>,
        next_letter_at_ms: i64,
    }
}

stored_row! {
    /// All of one identity, or of one mailbox.
    struct StoredCounts {
        wrong_tries: i64,
        tries_forgotten_at_ms: i64,
        codes_sent: i64,
        codes_forgotten_at_ms: i64,
    }
}

impl StoredCounts {
    /// What was forgotten counts no more.
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
    identity: StoredCounts,
    mailbox: StoredCounts,
}

impl BothCounts {
    /// Whether one more letter may go out; counts it if so.
    fn send(&mut self) -> CodeSending {
        for (counts, bounds) in [(&self.identity, IDENTITY_BOUNDS), (&self.mailbox, MAILBOX_BOUNDS)] {
            match counts.may_send(bounds) {
                CodeSending::Yes => {}
                refused => return refused,
            }
        }
        self.identity.codes_sent += 1;
        self.mailbox.codes_sent += 1;
        CodeSending::Yes
    }

    fn take_back_letter(&mut self) {
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
        let left = |counts: &StoredCounts, bounds: Bounds| bounds.tries - counts.wrong_tries;
        left(&self.identity, IDENTITY_BOUNDS).min(left(&self.mailbox, MAILBOX_BOUNDS)).max(0)
    }
}

/// The name of a mailbox's counts. No provider's issuer is this: theirs are URLs.
fn mailbox(email: &str) -> Identity {
    Identity { issuer: "mailbox".to_owned(), subject: email.to_owned() }
}

fn after(now: UnixMillis, span: Duration) -> i64 {
    now.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

fn path(stored: &str) -> Result<LocalPath, StoreError> {
    LocalPath::parse(stored).ok_or_else(|| StoreError::Corrupt {
        what: "a sign-in's return path",
        why: format!("{stored:?} is none of this portal"),
    })
}

impl StoredHalfSignIn {
    fn identity(&self) -> Identity {
        Identity { issuer: self.issuer.clone(), subject: self.subject.clone() }
    }

    fn into_half_sign_in(self) -> Result<HalfSignIn, StoreError> {
        let corrupt = |what, why: String| StoreError::Corrupt { what, why };
        let code_hash = self.code_hash.try_into().map_err(|bytes: Vec<u8>| {
            corrupt("a code's hash", format!("it has {} bytes instead of 32", bytes.len()))
        })?;
        Ok(HalfSignIn {
            identity: Identity { issuer: self.issuer, subject: self.subject },
            email: self.email.parse().map_err(|error| corrupt("an address", format!("{error}")))?,
            return_to: path(&self.return_to)?,
            code: MailedCode {
                hash: TokenHash(code_hash),
                expires_at: UnixMillis(self.code_expires_at_ms),
                sent: u32::try_from(self.codes_sent).unwrap_or(u32::MAX),
                sent_at: UnixMillis(self.last_sent_at_ms.unwrap_or(0)),
            },
            is_code_sent: self.last_sent_at_ms.is_some(),
        })
    }
}

const BEGIN: &str = "INSERT INTO sign_ins (token_hash, state, nonce, pkce_verifier, return_to, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6)";
const TAKE: &str = "DELETE FROM sign_ins WHERE token_hash = $1 RETURNING state, nonce, pkce_verifier, return_to, expires_at_ms";
/// Gives the row as it is, and holds it against others until the transaction ends.
const HOLD_COUNTS: &str = "INSERT INTO code_counts AS c (issuer, subject, wrong_tries, tries_forgotten_at_ms, codes_sent, \
    codes_forgotten_at_ms) VALUES ($1, $2, 0, 0, 0, 0) ON CONFLICT (issuer, subject) DO UPDATE SET wrong_tries = c.wrong_tries \
    RETURNING wrong_tries, tries_forgotten_at_ms, codes_sent, codes_forgotten_at_ms";
const SET_COUNTS: &str = "UPDATE code_counts SET wrong_tries = $3, tries_forgotten_at_ms = $4, codes_sent = $5, \
    codes_forgotten_at_ms = $6 WHERE issuer = $1 AND subject = $2";
const BEGIN_HALF: &str = "INSERT INTO half_sign_ins (token_hash, issuer, subject, email, return_to, code_hash, \
    code_expires_at_ms, wrong_tries, codes_sent, last_sent_at_ms, next_letter_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 1, NULL, $8)";
const HALF: &str = "SELECT issuer, subject, email, return_to, code_hash, code_expires_at_ms, wrong_tries, codes_sent, \
    last_sent_at_ms, next_letter_at_ms FROM half_sign_ins WHERE token_hash = $1 AND code_expires_at_ms > $2";
const COUNT_LETTER: &str =
    "UPDATE half_sign_ins SET codes_sent = codes_sent + $2, next_letter_at_ms = $3 WHERE token_hash = $1";
const SENT: &str = "UPDATE half_sign_ins SET code_hash = $2, code_expires_at_ms = $3, last_sent_at_ms = $4 \
    WHERE token_hash = $1 AND code_expires_at_ms > $4";
const COUNT_WRONG: &str = "UPDATE half_sign_ins SET wrong_tries = wrong_tries + 1 WHERE token_hash = $1";
const END_HALF: &str = "DELETE FROM half_sign_ins WHERE token_hash = $1";
const DESTROY: &str = "DELETE FROM half_sign_ins WHERE issuer = $1 AND subject = $2";
const DESTROY_OF_MAILBOX: &str = "DELETE FROM half_sign_ins WHERE email = $1";
const FORGET_SIGN_INS: &str = "DELETE FROM sign_ins WHERE token_hash IN (SELECT token_hash FROM sign_ins WHERE expires_at_ms <= $1 LIMIT $2)";
const FORGET_TOO_MANY: &str = "DELETE FROM sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM sign_ins ORDER BY expires_at_ms DESC LIMIT $2 OFFSET $1)";
const FORGET_HALF: &str = "DELETE FROM half_sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM half_sign_ins WHERE code_expires_at_ms <= $1 LIMIT $2)";
/// The times are compared once more at the end, for somebody may count meanwhile.
const FORGET_COUNTS: &str = "DELETE FROM code_counts WHERE (issuer, subject) IN (SELECT issuer, subject FROM code_counts \
    WHERE tries_forgotten_at_ms <= $1 AND codes_forgotten_at_ms <= $1 LIMIT $2) \
    AND tries_forgotten_at_ms <= $1 AND codes_forgotten_at_ms <= $1";

/// Writes what happens inside a transaction for both kinds of connection.
macro_rules! in_transaction {
    ($module:ident, $database:ty) => {
        mod $module {
            use super::*;

            type Transaction<'a> = sqlx::Transaction<'a, $database>;

            /// Everybody holds the identity's before the mailbox's.
            pub(super) async fn hold_both(
                transaction: &mut Transaction<'_>,
                identity: &Identity,
                email: &str,
                now: UnixMillis,
            ) -> Result<BothCounts, sqlx::Error> {
                let identity = hold_counts(transaction, identity, now).await?;
                let mailbox = hold_counts(transaction, &mailbox(email), now).await?;
                Ok(BothCounts { identity, mailbox })
            }

            async fn set_both(
                transaction: &mut Transaction<'_>,
                identity: &Identity,
                email: &str,
                counts: &BothCounts,
            ) -> Result<(), sqlx::Error> {
                set_counts(transaction, identity, &counts.identity).await?;
                set_counts(transaction, &mailbox(email), &counts.mailbox).await
            }

            async fn hold_counts(
                transaction: &mut Transaction<'_>,
                identity: &Identity,
                now: UnixMillis,
            ) -> Result<StoredCounts, sqlx::Error> {
                let held = sqlx::query_as(HOLD_COUNTS)
                    .bind(identity.issuer.as_str())
                    .bind(identity.subject.as_str());
                let held: StoredCounts = held.fetch_one(&mut **transaction).await?;
                Ok(held.at(now))
            }

            async fn set_counts(
                transaction: &mut Transaction<'_>,
                identity: &Identity,
                counts: &StoredCounts,
            ) -> Result<(), sqlx::Error> {
                let set = sqlx::query(SET_COUNTS)
                    .bind(identity.issuer.as_str())
                    .bind(identity.subject.as_str())
                    .bind(counts.wrong_tries)
                    .bind(counts.tries_forgotten_at_ms)
                    .bind(counts.codes_sent)
                    .bind(counts.codes_forgotten_at_ms);
                set.execute(&mut **transaction).await.map(|_| ())
            }

            /// The sign-in and the counts for it. The counts are held first, by everybody: two who hold one thing each
            /// and wait for the other's would wait for ever. So the sign-in is looked at once for its identity, and read
            /// again when nobody else can change it.
            pub(super) async fn hold_half(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                now: UnixMillis,
            ) -> Result<Option<(StoredHalfSignIn, BothCounts)>, sqlx::Error> {
                let Some(seen) = half(transaction, token, now).await? else { return Ok(None) };
                let counts = hold_both(transaction, &seen.identity(), &seen.email, now).await?;
                Ok(half(transaction, token, now).await?.map(|half| (half, counts)))
            }

            async fn half(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                now: UnixMillis,
            ) -> Result<Option<StoredHalfSignIn>, sqlx::Error> {
                let found = sqlx::query_as(HALF).bind(token.0.as_slice()).bind(now.0);
                found.fetch_optional(&mut **transaction).await
            }

            pub(super) async fn begin(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                half: &HalfSignIn,
                now: UnixMillis,
            ) -> Result<CodeSending, sqlx::Error> {
                let mut counts = hold_both(transaction, &half.identity, half.email.as_str(), now).await?;
                let sending = counts.send();
                if sending == CodeSending::Yes {
                    set_both(transaction, &half.identity, half.email.as_str(), &counts).await?;
                    let begun = sqlx::query(BEGIN_HALF)
                        .bind(token.0.as_slice())
                        .bind(half.identity.issuer.as_str())
                        .bind(half.identity.subject.as_str())
                        .bind(half.email.as_str())
                        .bind(half.return_to.as_str())
                        .bind(half.code.hash.0.as_slice())
                        .bind(half.code.expires_at.0)
                        .bind(after(now, CODE_PAUSE));
                    begun.execute(&mut **transaction).await?;
                }
                Ok(sending)
            }

            pub(super) async fn next_letter(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                now: UnixMillis,
            ) -> Result<CodeSending, sqlx::Error> {
                let Some((half, mut counts)) = hold_half(transaction, token, now).await? else {
                    return Ok(CodeSending::Gone);
                };
                if half.codes_sent >= i64::from(MAX_CODES_PER_SIGN_IN) {
                    return Ok(CodeSending::NoMore);
                }
                if half.next_letter_at_ms > now.0 {
                    return Ok(CodeSending::NotBefore(UnixMillis(half.next_letter_at_ms)));
                }
                let sending = counts.send();
                if sending == CodeSending::Yes {
                    set_both(transaction, &half.identity(), &half.email, &counts).await?;
                    count_letter(transaction, token, 1, after(now, CODE_PAUSE)).await?;
                }
                Ok(sending)
            }

            /// A letter was not sent after all.
            pub(super) async fn take_back_letter(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                now: UnixMillis,
            ) -> Result<(), sqlx::Error> {
                let Some((half, mut counts)) = hold_half(transaction, token, now).await? else {
                    return Ok(());
                };
                counts.take_back_letter();
                set_both(transaction, &half.identity(), &half.email, &counts).await?;
                count_letter(transaction, token, -1, after(now, FAILED_LETTER_PAUSE)).await
            }

            async fn count_letter(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                more: i64,
                next_at_ms: i64,
            ) -> Result<(), sqlx::Error> {
                let counted = sqlx::query(COUNT_LETTER).bind(token.0.as_slice()).bind(more).bind(next_at_ms);
                counted.execute(&mut **transaction).await.map(|_| ())
            }

            pub(super) async fn try_code(
                transaction: &mut Transaction<'_>,
                token: TokenHash,
                typed: TokenHash,
                now: UnixMillis,
            ) -> Result<Tried, sqlx::Error> {
                let Some((half, mut counts)) = hold_half(transaction, token, now).await? else {
                    return Ok(Tried::Gone);
                };
                let identity = half.identity();
                // A sign-in that was begun just before the last wrong try of another.
                if counts.tries_left() == 0 {
                    destroy(transaction, &identity, &half.email, &counts).await?;
                    return Ok(Tried::Destroyed { half, is_news: false });
                }
                let kept: Option<[u8; 32]> = half.code_hash.as_slice().try_into().ok();
                if kept.is_some_and(|kept| TokenHash(kept).matches(&typed)) {
                    counts.forgive(half.wrong_tries);
                    set_both(transaction, &identity, &half.email, &counts).await?;
                    sqlx::query(END_HALF).bind(token.0.as_slice()).execute(&mut **transaction).await?;
                    return Ok(Tried::Right(half));
                }
                counts.identity.count_wrong(now);
                counts.mailbox.count_wrong(now);
                set_both(transaction, &identity, &half.email, &counts).await?;
                if counts.tries_left() == 0 {
                    destroy(transaction, &identity, &half.email, &counts).await?;
                    return Ok(Tried::Destroyed { half, is_news: true });
                }
                sqlx::query(COUNT_WRONG).bind(token.0.as_slice()).execute(&mut **transaction).await?;
                Ok(Tried::Wrong { left: u32::try_from(counts.tries_left()).unwrap_or(0) })
            }

            async fn destroy(
                transaction: &mut Transaction<'_>,
                identity: &Identity,
                email: &str,
                counts: &BothCounts,
            ) -> Result<(), sqlx::Error> {
                let destroyed =
                    sqlx::query(DESTROY).bind(identity.issuer.as_str()).bind(identity.subject.as_str());
                destroyed.execute(&mut **transaction).await?;
                if counts.mailbox.wrong_tries >= MAILBOX_BOUNDS.tries {
                    sqlx::query(DESTROY_OF_MAILBOX).bind(email).execute(&mut **transaction).await?;
                }
                Ok(())
            }
        }
    };
}

in_transaction!(in_sqlite, sqlx::Sqlite);
in_transaction!(in_postgres, sqlx::Postgres);

/// `CodeTry`, before what was kept is read.
enum Tried {
    Right(StoredHalfSignIn),
    Wrong { left: u32 },
    Destroyed { half: StoredHalfSignIn, is_news: bool },
    Gone,
}

for_both_stores! {
    impl SignIns {
        async fn begin_sign_in(&self, token: TokenHash, sign_in: SignIn) -> Result<(), StoreError> {
            let begun = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(BEGIN)
                    .bind(token.0.as_slice())
                    .bind(sign_in.state.as_str())
                    .bind(sign_in.nonce.as_str())
                    .bind(sign_in.pkce_verifier.as_str())
                    .bind(sign_in.return_to.as_str())
                    .bind(sign_in.expires_at.0)
                    .execute(&mut *connection)
            });
            begun.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn take_sign_in(&self, token: TokenHash, now: UnixMillis) -> Result<Option<SignIn>, StoreError> {
            let taken = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(TAKE).bind(token.0.as_slice()).fetch_all(&mut *connection)
            });
            let rows: Vec<StoredSignIn> = taken.map_err(|error| explain(&error))?;
            let Some(row) = rows.into_iter().next().filter(|row| row.expires_at_ms > now.0) else {
                return Ok(None);
            };
            Ok(Some(SignIn {
                state: row.state,
                nonce: row.nonce,
                pkce_verifier: row.pkce_verifier,
                return_to: path(&row.return_to)?,
                expires_at: UnixMillis(row.expires_at_ms),
            }))
        }

        async fn half_sign_in(&self, token: TokenHash, now: UnixMillis) -> Result<Option<HalfSignIn>, StoreError> {
            let found = sqlx::query_as(HALF).bind(token.0.as_slice()).bind(now.0).fetch_optional(&self.reader);
            answer(found).await?.map(StoredHalfSignIn::into_half_sign_in).transpose()
        }

        async fn begin_half_sign_in(
            &self,
            token: TokenHash,
            half: HalfSignIn,
            now: UnixMillis,
        ) -> Result<CodeSending, StoreError> {
            self.begin_half(token, &half, now).await
        }

        async fn may_send_code(&self, token: TokenHash, now: UnixMillis) -> Result<CodeSending, StoreError> {
            self.next_letter(token, now).await
        }

        async fn code_was_sent(
            &self,
            token: TokenHash,
            hash: TokenHash,
            expires_at: UnixMillis,
            now: UnixMillis,
        ) -> Result<bool, StoreError> {
            let sent = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(SENT)
                    .bind(token.0.as_slice())
                    .bind(hash.0.as_slice())
                    .bind(expires_at.0)
                    .bind(now.0)
                    .execute(&mut *connection)
            });
            sent.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn try_code(&self, token: TokenHash, typed: TokenHash, now: UnixMillis) -> Result<CodeTry, StoreError> {
            Ok(match self.try_in_turn(token, typed, now).await? {
                Tried::Right(half) => CodeTry::Right(half.into_half_sign_in()?),
                Tried::Wrong { left } => CodeTry::Wrong { left },
                Tried::Destroyed { half, is_news } => CodeTry::Destroyed { half: half.into_half_sign_in()?, is_news },
                Tried::Gone => CodeTry::Gone,
            })
        }

        async fn code_was_not_sent(&self, token: TokenHash, now: UnixMillis) -> Result<(), StoreError> {
            self.take_back_letter(token, now).await
        }

        async fn forget_old_sign_ins(&self, now: UnixMillis, limit: u32, keep: u32) -> Result<u64, StoreError> {
            let mut forgotten = 0;
            let too_many = (FORGET_TOO_MANY, i64::from(keep));
            let old = [FORGET_SIGN_INS, FORGET_HALF, FORGET_COUNTS].map(|sql| (sql, now.0));
            for (sql, bound) in old.into_iter().chain([too_many]) {
                let gone = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    sqlx::query(sql).bind(bound).bind(i64::from(limit)).execute(&mut *connection)
                });
                forgotten += gone.map_err(|error| explain(&error))?.rows_affected();
            }
            Ok(forgotten)
        }
    }
}

/// Steps with codes, each one transaction.
macro_rules! code_steps {
    ($store:ty, $steps:ident) => {
        impl $store {
            async fn begin_half(
                &self,
                token: TokenHash,
                half: &HalfSignIn,
                now: UnixMillis,
            ) -> Result<CodeSending, StoreError> {
                let outcome = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                    let mut transaction = connection.begin_with(Self::BEGIN).await?;
                    let sending = $steps::begin(&mut transaction, token, half, now).await?;
                    transaction.commit().await.map(|()| sending)
                });
                outcome.map_err(|error| explain(&error))
            }

            async fn next_letter(
                &self,
                token: TokenHash,
                now: UnixMillis,
            ) -> Result<CodeSending, StoreError> {
                let outcome = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                    let mut transaction = connection.begin_with(Self::BEGIN).await?;
                    let sending = $steps::next_letter(&mut transaction, token, now).await?;
                    transaction.commit().await.map(|()| sending)
                });
                outcome.map_err(|error| explain(&error))
            }

            async fn take_back_letter(&self, token: TokenHash, now: UnixMillis) -> Result<(), StoreError> {
                let outcome = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                    let mut transaction = connection.begin_with(Self::BEGIN).await?;
                    $steps::take_back_letter(&mut transaction, token, now).await?;
                    transaction.commit().await
                });
                outcome.map_err(|error| explain(&error))
            }

            async fn try_in_turn(
                &self,
                token: TokenHash,
                typed: TokenHash,
                now: UnixMillis,
            ) -> Result<Tried, StoreError> {
                let outcome = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                    let mut transaction = connection.begin_with(Self::BEGIN).await?;
                    let tried = $steps::try_code(&mut transaction, token, typed, now).await?;
                    transaction.commit().await.map(|()| tried)
                });
                outcome.map_err(|error| explain(&error))
            }
        }
    };
}

code_steps!(crate::db::sqlite::SqliteStore, in_sqlite);
code_steps!(crate::db::postgres::PostgresStore, in_postgres);
