//! The queries about sign-ins under way.
//!
//! Codes from a mail are guessed at by whoever knows a password, so tries are counted for the identity over all its
//! sign-ins, and **before** the code is compared: however many try at once, no more than the bound are compared.

use crate::both::{for_both_stores, stored_row};
use crate::failure::{answer, explain};
use crate::patience::{COMMAND_PATIENCE, patiently};
use crate::{CodeTry, HalfSignIn, MailedCode, SignIn, SignIns, StoreError};
use chancery_domain::{Identity, LocalPath, TokenHash, UnixMillis};
use std::time::Duration;

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
        codes_sent: i64,
        last_sent_at_ms: i64,
    }
}

fn path(stored: &str) -> Result<LocalPath, StoreError> {
    LocalPath::parse(stored).ok_or_else(|| StoreError::Corrupt {
        what: "a sign-in's return path",
        why: format!("{stored:?} is none of this portal"),
    })
}

impl StoredHalfSignIn {
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
                sent_at: UnixMillis(self.last_sent_at_ms),
            },
        })
    }
}

const BEGIN: &str = "INSERT INTO sign_ins (token_hash, state, nonce, pkce_verifier, return_to, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6)";
const TAKE: &str = "DELETE FROM sign_ins WHERE token_hash = $1 RETURNING state, nonce, pkce_verifier, return_to, expires_at_ms";
const BEGIN_HALF: &str = "INSERT INTO half_sign_ins (token_hash, issuer, subject, email, return_to, code_hash, \
    code_expires_at_ms, codes_sent, last_sent_at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const HALF: &str = "SELECT issuer, subject, email, return_to, code_hash, code_expires_at_ms, codes_sent, last_sent_at_ms \
    FROM half_sign_ins WHERE token_hash = $1 AND code_expires_at_ms > $2";
const NEW_CODE: &str = "UPDATE half_sign_ins SET code_hash = $2, code_expires_at_ms = $3, codes_sent = codes_sent + 1, \
    last_sent_at_ms = $4 WHERE token_hash = $1 AND codes_sent = $5";
const TAKE_HALF: &str = "DELETE FROM half_sign_ins WHERE token_hash = $1 AND code_hash = $2";
const DESTROY: &str = "DELETE FROM half_sign_ins WHERE issuer = $1 AND subject = $2";
const COUNT_TRY: &str = "INSERT INTO code_tries AS t (issuer, subject, tries, forgotten_at_ms) VALUES ($1, $2, 1, $4) \
    ON CONFLICT (issuer, subject) DO UPDATE SET \
    tries = CASE WHEN t.forgotten_at_ms <= $3 THEN 1 ELSE t.tries + 1 END, \
    forgotten_at_ms = CASE WHEN t.forgotten_at_ms <= $3 THEN $4 ELSE t.forgotten_at_ms END RETURNING tries";
const TRIES: &str =
    "SELECT tries FROM code_tries WHERE issuer = $1 AND subject = $2 AND forgotten_at_ms > $3";
const FORGET_TRIES: &str = "DELETE FROM code_tries WHERE issuer = $1 AND subject = $2";
const FORGET_SIGN_INS: &str = "DELETE FROM sign_ins WHERE token_hash IN (SELECT token_hash FROM sign_ins WHERE expires_at_ms <= $1 LIMIT $2)";
const FORGET_HALF: &str = "DELETE FROM half_sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM half_sign_ins WHERE code_expires_at_ms <= $1 LIMIT $2)";
const FORGET_OLD_TRIES: &str = "DELETE FROM code_tries WHERE forgotten_at_ms <= $1";

stored_row! {
    struct StoredTries {
        tries: i64,
    }
}

/// Wrong tries of one identity, over all its sign-ins, after which they are all destroyed.
pub const MAX_CODE_TRIES: u32 = 5;

/// How long tries are counted, and so how long an identity that used them up gets no more codes.
pub const CODE_TRIES_MEMORY: Duration = Duration::from_secs(15 * 60);

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

        async fn begin_half_sign_in(&self, token: TokenHash, half: HalfSignIn) -> Result<(), StoreError> {
            let begun = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(BEGIN_HALF)
                    .bind(token.0.as_slice())
                    .bind(half.identity.issuer.as_str())
                    .bind(half.identity.subject.as_str())
                    .bind(half.email.as_str())
                    .bind(half.return_to.as_str())
                    .bind(half.code.hash.0.as_slice())
                    .bind(half.code.expires_at.0)
                    .bind(i64::from(half.code.sent))
                    .bind(half.code.sent_at.0)
                    .execute(&mut *connection)
            });
            begun.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn half_sign_in(&self, token: TokenHash, now: UnixMillis) -> Result<Option<HalfSignIn>, StoreError> {
            let found = sqlx::query_as(HALF).bind(token.0.as_slice()).bind(now.0).fetch_optional(&self.reader);
            answer(found).await?.map(StoredHalfSignIn::into_half_sign_in).transpose()
        }

        async fn replace_code(&self, token: TokenHash, new: MailedCode) -> Result<bool, StoreError> {
            let replaced = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(NEW_CODE)
                    .bind(token.0.as_slice())
                    .bind(new.hash.0.as_slice())
                    .bind(new.expires_at.0)
                    .bind(new.sent_at.0)
                    .bind(i64::from(new.sent) - 1)
                    .execute(&mut *connection)
            });
            replaced.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn try_code(&self, token: TokenHash, typed: TokenHash, now: UnixMillis) -> Result<CodeTry, StoreError> {
            let Some(half) = self.half_sign_in(token, now).await? else { return Ok(CodeTry::Gone) };
            let Identity { issuer, subject } = &half.identity;
            let forgotten_at_ms = now.0 + CODE_TRIES_MEMORY.as_millis() as i64;
            let counted = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(COUNT_TRY)
                    .bind(issuer.as_str())
                    .bind(subject.as_str())
                    .bind(now.0)
                    .bind(forgotten_at_ms)
                    .fetch_all(&mut *connection)
            });
            let counted: Vec<StoredTries> = counted.map_err(|error| explain(&error))?;
            let tries = counted.first().map_or(i64::MAX, |row| row.tries);
            let max_tries = i64::from(MAX_CODE_TRIES);
            let is_right = tries <= max_tries && half.code.hash.matches(&typed);
            if is_right {
                let taken = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    sqlx::query(TAKE_HALF)
                        .bind(token.0.as_slice())
                        .bind(half.code.hash.0.as_slice())
                        .execute(&mut *connection)
                });
                // Another request was quicker with the same code, or a new one was just sent.
                if taken.map_err(|error| explain(&error))?.rows_affected() == 0 {
                    return Ok(CodeTry::Gone);
                }
                let forgotten = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    sqlx::query(FORGET_TRIES).bind(issuer.as_str()).bind(subject.as_str()).execute(&mut *connection)
                });
                forgotten.map_err(|error| explain(&error))?;
                return Ok(CodeTry::Right(half));
            }
            if tries < max_tries {
                return Ok(CodeTry::Wrong { left: u32::try_from(max_tries - tries).unwrap_or(0) });
            }
            let destroyed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(DESTROY).bind(issuer.as_str()).bind(subject.as_str()).execute(&mut *connection)
            });
            destroyed.map_err(|error| explain(&error))?;
            Ok(CodeTry::Destroyed { half, is_news: tries == max_tries })
        }

        async fn has_tries_left(&self, identity: &Identity, now: UnixMillis) -> Result<bool, StoreError> {
            let Identity { issuer, subject } = identity;
            let found = sqlx::query_as(TRIES).bind(issuer.as_str()).bind(subject.as_str()).bind(now.0);
            let found: Option<StoredTries> = answer(found.fetch_optional(&self.reader)).await?;
            Ok(found.is_none_or(|row| row.tries < i64::from(MAX_CODE_TRIES)))
        }

        async fn forget_old_sign_ins(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
            let mut forgotten = 0;
            for (sql, has_limit) in [(FORGET_SIGN_INS, true), (FORGET_HALF, true), (FORGET_OLD_TRIES, false)] {
                let gone = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    let statement = sqlx::query(sql).bind(now.0);
                    let statement = if has_limit { statement.bind(i64::from(limit)) } else { statement };
                    statement.execute(&mut *connection)
                });
                forgotten += gone.map_err(|error| explain(&error))?.rows_affected();
            }
            Ok(forgotten)
        }
    }
}
