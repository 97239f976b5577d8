//! The queries about consents, authorization codes and access tokens.
//!
//! A code and the access token that it was exchanged for are one row. Presenting the code is one UPDATE of that row, which
//! counts the presentation and gives the token to the first one alone, if everything fits; any later one sets the token back
//! to nothing. So whoever comes second, even at the same moment, ends what the first one got.

use crate::DbError;
use crate::db::{COMMAND_WAIT, Db, FromRow, Row, corrupt, query};
use crate::{CodePresented, Consent, ConsentQuestion, Grant, NewCode, ProviderError, Redeemed};
use chancery_domain::{TokenHash, UnixMillis};

impl FromRow for Grant {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            client_id: row.get("client_id")?,
            redirect_uri: row.get("redirect_uri")?,
            code_challenge: row.get("code_challenge")?,
            subject: row.get("subject")?,
            password_version: row.get("password_version")?,
            scope: row.get("scope")?,
            nonce: row.get("nonce")?,
            authenticated_at: UnixMillis(row.get("authenticated_at_ms")?),
        })
    }
}

struct Presentation {
    presentations: i64,
    code_expires_at: UnixMillis,
    access_token_hash: Option<Vec<u8>>,
    grant: Grant,
}

impl FromRow for Presentation {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            presentations: row.get("presentations")?,
            code_expires_at: UnixMillis(row.get("code_expires_at_ms")?),
            access_token_hash: row.get("access_token_hash")?,
            grant: Grant::from_row(row)?,
        })
    }
}

impl FromRow for ConsentQuestion {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let session: Vec<u8> = row.get("session_hash")?;
        let session = session.try_into().map_err(|bytes: Vec<u8>| {
            corrupt("a consent question's session", format!("it has {} bytes instead of 32", bytes.len()))
        })?;
        Ok(Self {
            subject: row.get("subject")?,
            session: TokenHash(session),
            request: row.get("request")?,
            expires_at: UnixMillis(row.get("expires_at_ms")?),
        })
    }
}

const ASK: &str = "INSERT INTO consent_questions (token_hash, subject, session_hash, request, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5)";
const TAKE_QUESTION: &str = "DELETE FROM consent_questions WHERE token_hash = $1 \
    RETURNING subject, session_hash, request, expires_at_ms";
const REMEMBER: &str = "INSERT INTO consents (subject, client_id, scope, allowed_at_ms) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (subject, client_id, scope) DO NOTHING";
const DELETE_CONSENTS: &str = "DELETE FROM consents WHERE subject = $1 AND client_id = $2";
const CONSENTS: &str = "SELECT scope FROM consents WHERE subject = $1 AND client_id = $2 ORDER BY scope";
const ISSUE: &str = "INSERT INTO grants (client_id, redirect_uri, code_challenge, subject, password_version, scope, nonce, \
    authenticated_at_ms, code_hash, code_expires_at_ms, forgotten_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
/// On the right of `=` stands the row as it was before.
const PRESENT: &str = "UPDATE grants SET presentations = presentations + 1, \
    access_token_hash = CASE WHEN presentations = 0 AND code_expires_at_ms > $2 AND client_id = $3 AND redirect_uri = $4 \
        AND code_challenge = $5 THEN $6 ELSE NULL END, \
    access_expires_at_ms = CASE WHEN presentations = 0 AND code_expires_at_ms > $2 AND client_id = $3 AND redirect_uri = $4 \
        AND code_challenge = $5 THEN $7 ELSE NULL END \
    WHERE code_hash = $1 RETURNING presentations, code_expires_at_ms, access_token_hash, client_id, redirect_uri, \
    code_challenge, subject, password_version, scope, nonce, authenticated_at_ms";
const ACCESS: &str = "SELECT client_id, redirect_uri, code_challenge, subject, password_version, scope, nonce, \
    authenticated_at_ms FROM grants WHERE access_token_hash = $1 AND access_expires_at_ms > $2";
const DELETE_EXPIRED: &str = "DELETE FROM grants WHERE code_hash IN \
    (SELECT code_hash FROM grants WHERE forgotten_at_ms <= $1 LIMIT $2)";
const DELETE_EXPIRED_QUESTIONS: &str = "DELETE FROM consent_questions WHERE token_hash IN \
    (SELECT token_hash FROM consent_questions WHERE expires_at_ms <= $1 LIMIT $2)";

fn without_nul(what: &'static str, texts: &[&str]) -> Result<(), ProviderError> {
    match texts.iter().any(|text| text.contains('\0')) {
        true => Err(DbError::NulCharacter { what }.into()),
        false => Ok(()),
    }
}

/// What the built-in identity provider gives out in people's names.
#[derive(Clone)]
pub struct Grants {
    pub(crate) db: Db,
}

impl Grants {
    pub async fn ask_for_consent(
        &self,
        token: TokenHash,
        question: ConsentQuestion,
    ) -> Result<(), ProviderError> {
        without_nul("the request", &[&question.request])?;
        let ask = query(ASK)
            .bind(token.0.as_slice())
            .bind(question.subject.as_str())
            .bind(question.session.0.as_slice())
            .bind(question.request.as_str())
            .bind(question.expires_at.0);
        self.db.execute(ask, COMMAND_WAIT).await?;
        Ok(())
    }

    /// Gives it once; None where there is none or its time is over.
    pub async fn take_consent_question(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<ConsentQuestion>, ProviderError> {
        let take = query(TAKE_QUESTION).bind(token.0.as_slice());
        let taken: Vec<ConsentQuestion> = self.db.write_returning(take, COMMAND_WAIT).await?;
        Ok(taken.into_iter().next().filter(|question| question.expires_at > now))
    }

    pub async fn remember_consent(&self, consent: Consent) -> Result<(), ProviderError> {
        let remember = query(REMEMBER)
            .bind(consent.subject.as_str())
            .bind(consent.client_id.as_str())
            .bind(consent.scope.as_str())
            .bind(consent.at.0);
        self.db.execute(remember, COMMAND_WAIT).await?;
        Ok(())
    }

    /// Takes back all that was allowed to this application; says how much there was.
    pub async fn forget_consents(&self, subject: &str, client_id: &str) -> Result<u64, ProviderError> {
        let delete = query(DELETE_CONSENTS).bind(subject).bind(client_id);
        Ok(self.db.execute(delete, COMMAND_WAIT).await?)
    }

    /// Every scope that was allowed to this application.
    pub async fn consents(&self, subject: &str, client_id: &str) -> Result<Vec<String>, ProviderError> {
        Ok(self.db.fetch_all(query(CONSENTS).bind(subject).bind(client_id)).await?)
    }

    pub async fn issue_code(&self, new: NewCode) -> Result<(), ProviderError> {
        let NewCode { code, grant, expires_at, forgotten_at } = &new;
        let nonce = grant.nonce.as_deref();
        without_nul("the grant", &[&grant.redirect_uri, &grant.scope, nonce.unwrap_or_default()])?;
        let issue = query(ISSUE)
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
            .bind(forgotten_at.0);
        self.db.execute(issue, COMMAND_WAIT).await?;
        Ok(())
    }

    /// A code is good for one presentation, right or wrong. However many present it at once, one gets its token at most,
    /// and the second presentation revokes that token.
    pub async fn redeem_code(&self, presented: CodePresented) -> Result<Redeemed, ProviderError> {
        let CodePresented {
            code,
            client_id,
            redirect_uri,
            code_challenge,
            access_token,
            access_expires_at,
            now,
        } = &presented;
        without_nul("the request", &[client_id, redirect_uri, code_challenge])?;
        let present = query(PRESENT)
            .bind(code.0.as_slice())
            .bind(now.0)
            .bind(client_id.as_str())
            .bind(redirect_uri.as_str())
            .bind(code_challenge.as_str())
            .bind(access_token.0.as_slice())
            .bind(access_expires_at.0);
        let found: Vec<Presentation> = self.db.write_returning(present, COMMAND_WAIT).await?;
        let Some(found) = found.into_iter().next() else { return Ok(Redeemed::Unknown) };
        let grant = found.grant;
        Ok(match (found.presentations, found.access_token_hash) {
            (1, Some(_)) => Redeemed::Yes(grant),
            (1, None) => Redeemed::Mismatch { grant, is_late: found.code_expires_at <= *now },
            _ => Redeemed::Replayed(grant),
        })
    }

    /// What an access token is good for, if it is alive.
    pub async fn access(&self, token: TokenHash, now: UnixMillis) -> Result<Option<Grant>, ProviderError> {
        Ok(self.db.fetch_optional(query(ACCESS).bind(token.0.as_slice()).bind(now.0)).await?)
    }

    /// Removes what nobody can use any more; says how much.
    pub async fn forget_old_grants(&self, now: UnixMillis, limit: u32) -> Result<u64, ProviderError> {
        let mut deleted = 0;
        for sql in [DELETE_EXPIRED, DELETE_EXPIRED_QUESTIONS] {
            let delete = query(sql).bind(now.0).bind(i64::from(limit));
            deleted += self.db.execute(delete, COMMAND_WAIT).await?;
        }
        Ok(deleted)
    }
}
