//! The queries about consents, authorization codes and access tokens.
//!
//! A code and the access token that it was exchanged for are one row. Presenting the code is one UPDATE of that row, which
//! counts the presentation and gives the token to the first one alone, if everything fits; any later one sets the token back
//! to nothing. So whoever comes second, even at the same moment, ends what the first one got.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::{CodePresented, Consent, ConsentQuestion, Grant, Grants, NewCode, Redeemed, StoreError};
use chancery_domain::{TokenHash, UnixMillis};

stored_row! {
    struct StoredGrant {
        client_id: String,
        redirect_uri: String,
        code_challenge: String,
        subject: String,
        password_version: i64,
        scope: String,
        nonce: Option<String>,
        authenticated_at_ms: i64,
    }
}

impl StoredGrant {
    fn into_grant(self) -> Grant {
        Grant {
            client_id: self.client_id,
            redirect_uri: self.redirect_uri,
            code_challenge: self.code_challenge,
            subject: self.subject,
            password_version: self.password_version,
            scope: self.scope,
            nonce: self.nonce,
            authenticated_at: UnixMillis(self.authenticated_at_ms),
        }
    }
}

stored_row! {
    struct StoredPresentation {
        presentations: i64,
        code_expires_at_ms: i64,
        access_token_hash: Option<Vec<u8>>,
        ..grant: StoredGrant,
    }
}

stored_row! {
    struct StoredQuestion {
        subject: String,
        session_hash: Vec<u8>,
        request: String,
        expires_at_ms: i64,
    }
}

stored_row! {
    struct StoredScope {
        scope: String,
    }
}

const ASK: &str = "INSERT INTO consent_questions (token_hash, subject, session_hash, request, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5)";
const TAKE_QUESTION: &str = "DELETE FROM consent_questions WHERE token_hash = $1 \
    RETURNING subject, session_hash, request, expires_at_ms";
const REMEMBER: &str = "INSERT INTO consents (subject, client_id, scope, allowed_at_ms) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (subject, client_id, scope) DO NOTHING";
const FORGET_CONSENTS: &str = "DELETE FROM consents WHERE subject = $1 AND client_id = $2";
const CONSENTS: &str = "SELECT scope FROM consents WHERE subject = $1 AND client_id = $2 ORDER BY scope";

macro_rules! grant_columns {
    () => {
        "client_id, redirect_uri, code_challenge, subject, password_version, scope, nonce, authenticated_at_ms"
    };
}

const ISSUE: &str = concat!(
    "INSERT INTO grants (",
    grant_columns!(),
    ", code_hash, code_expires_at_ms, forgotten_at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
);

/// On the right of `=` stands the row as it was before.
macro_rules! when_it_fits {
    ($value:literal) => {
        concat!(
            "CASE WHEN presentations = 0 AND code_expires_at_ms > $2 AND client_id = $3 AND redirect_uri = $4 \
             AND code_challenge = $5 THEN ",
            $value,
            " ELSE NULL END"
        )
    };
}

const PRESENT: &str = concat!(
    "UPDATE grants SET presentations = presentations + 1, access_token_hash = ",
    when_it_fits!("$6"),
    ", access_expires_at_ms = ",
    when_it_fits!("$7"),
    " WHERE code_hash = $1 RETURNING presentations, code_expires_at_ms, access_token_hash, ",
    grant_columns!()
);

const ACCESS: &str = concat!(
    "SELECT ",
    grant_columns!(),
    " FROM grants WHERE access_token_hash = $1 AND access_expires_at_ms > $2"
);
const FORGET_GRANTS: &str = "DELETE FROM grants WHERE code_hash IN \
    (SELECT code_hash FROM grants WHERE forgotten_at_ms <= $1 LIMIT $2)";
const FORGET_QUESTIONS: &str = "DELETE FROM consent_questions WHERE token_hash IN \
    (SELECT token_hash FROM consent_questions WHERE expires_at_ms <= $1 LIMIT $2)";

fn without_nul(what: &'static str, texts: &[&str]) -> Result<(), StoreError> {
    match texts.iter().any(|text| text.contains('\0')) {
        true => Err(StoreError::NulCharacter { what }),
        false => Ok(()),
    }
}

for_both_stores! {
    impl Grants {
        async fn ask_for_consent(&self, token: TokenHash, question: ConsentQuestion) -> Result<(), StoreError> {
            without_nul("the request", &[&question.request])?;
            let asked = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(ASK)
                    .bind(token.0.as_slice())
                    .bind(question.subject.as_str())
                    .bind(question.session.0.as_slice())
                    .bind(question.request.as_str())
                    .bind(question.expires_at.0)
                    .execute(&mut *connection)
            });
            asked.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn take_consent_question(
            &self,
            token: TokenHash,
            now: UnixMillis,
        ) -> Result<Option<ConsentQuestion>, StoreError> {
            let taken = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(TAKE_QUESTION).bind(token.0.as_slice()).fetch_all(&mut *connection)
            });
            let rows: Vec<StoredQuestion> = taken.map_err(|error| explain(&error))?;
            let Some(row) = rows.into_iter().next().filter(|row| row.expires_at_ms > now.0) else {
                return Ok(None);
            };
            let session = row.session_hash.try_into().map_err(|bytes: Vec<u8>| StoreError::Corrupt {
                what: "a consent question's session",
                why: format!("it has {} bytes instead of 32", bytes.len()),
            })?;
            Ok(Some(ConsentQuestion {
                subject: row.subject,
                session: TokenHash(session),
                request: row.request,
                expires_at: UnixMillis(row.expires_at_ms),
            }))
        }

        async fn remember_consent(&self, consent: Consent) -> Result<(), StoreError> {
            let remembered = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(REMEMBER)
                    .bind(consent.subject.as_str())
                    .bind(consent.client_id.as_str())
                    .bind(consent.scope.as_str())
                    .bind(consent.at.0)
                    .execute(&mut *connection)
            });
            remembered.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn forget_consents(&self, subject: &str, client_id: &str) -> Result<u64, StoreError> {
            let forgotten = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(FORGET_CONSENTS).bind(subject).bind(client_id).execute(&mut *connection)
            });
            forgotten.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }

        async fn consents(&self, subject: &str, client_id: &str) -> Result<Vec<String>, StoreError> {
            let found = sqlx::query_as(CONSENTS).bind(subject).bind(client_id).fetch_all(&self.reader);
            let rows: Vec<StoredScope> = answer(found).await?;
            Ok(rows.into_iter().map(|row| row.scope).collect())
        }

        async fn issue_code(&self, new: NewCode) -> Result<(), StoreError> {
            let NewCode { code, grant, expires_at, forgotten_at } = &new;
            let nonce = grant.nonce.as_deref();
            without_nul("the grant", &[&grant.redirect_uri, &grant.scope, nonce.unwrap_or_default()])?;
            let issued = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(ISSUE)
                    .bind(grant.client_id.as_str())
                    .bind(grant.redirect_uri.as_str())
                    .bind(grant.code_challenge.as_str())
                    .bind(grant.subject.as_str())
                    .bind(grant.password_version)
                    .bind(grant.scope.as_str())
                    .bind(nonce)
                    .bind(grant.authenticated_at.0)
                    .bind(code.0.as_slice())
                    .bind(expires_at.0)
                    .bind(forgotten_at.0)
                    .execute(&mut *connection)
            });
            issued.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn redeem_code(&self, presented: CodePresented) -> Result<Redeemed, StoreError> {
            let CodePresented { code, client_id, redirect_uri, code_challenge, access_token, access_expires_at, now } =
                &presented;
            without_nul("the request", &[client_id, redirect_uri, code_challenge])?;
            let rows = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(PRESENT)
                    .bind(code.0.as_slice())
                    .bind(now.0)
                    .bind(client_id.as_str())
                    .bind(redirect_uri.as_str())
                    .bind(code_challenge.as_str())
                    .bind(access_token.0.as_slice())
                    .bind(access_expires_at.0)
                    .fetch_all(&mut *connection)
            });
            let rows: Vec<StoredPresentation> = rows.map_err(|error| explain(&error))?;
            let Some(row) = rows.into_iter().next() else { return Ok(Redeemed::Unknown) };
            let grant = row.grant.into_grant();
            Ok(match (row.presentations, row.access_token_hash) {
                (1, Some(_)) => Redeemed::Yes(grant),
                (1, None) => Redeemed::Mismatch { grant, is_late: row.code_expires_at_ms <= now.0 },
                _ => Redeemed::Replayed(grant),
            })
        }

        async fn access(&self, token: TokenHash, now: UnixMillis) -> Result<Option<Grant>, StoreError> {
            let found = sqlx::query_as(ACCESS).bind(token.0.as_slice()).bind(now.0).fetch_optional(&self.reader);
            let row: Option<StoredGrant> = answer(found).await?;
            Ok(row.map(StoredGrant::into_grant))
        }

        async fn forget_old_grants(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
            let mut forgotten = 0;
            for sql in [FORGET_GRANTS, FORGET_QUESTIONS] {
                let gone = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    sqlx::query(sql).bind(now.0).bind(i64::from(limit)).execute(&mut *connection)
                });
                forgotten += gone.map_err(|error| explain(&error))?.rows_affected();
            }
            Ok(forgotten)
        }
    }
}
