//! Queries for consents, authorization codes and access tokens.
//!
//! A code and the access token that it was exchanged for share one row. Presenting the code is one UPDATE of that row.
//! It counts the presentation and sets the token only on the first one, if everything matches. Any later presentation
//! clears the token, so a replay revokes what the first one got, even when both arrive at the same time.

use super::backchannel_logouts::record_client;
use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, Query, QueryError, Row, Tx, from_row, query};
use crate::{
    CodeRedemption, Consent, ConsentRequest, Grant, NewAuthorizationCode, ProviderError, RedeemOutcome,
};
use chancery_domain::{TokenHash, UnixMillis};

from_row!(Grant {
    client_id,
    redirect_uri,
    code_challenge,
    subject,
    password_version,
    scope,
    nonce,
    sid,
    amr,
    authenticated_at: "authenticated_at_ms"
});

struct RedeemedRow {
    redemption_count: i64,
    code_expires_at: UnixMillis,
    access_token_hash: Option<Vec<u8>>,
    grant: Grant,
}

from_row!(RedeemedRow {
    redemption_count,
    code_expires_at: "code_expires_at_ms",
    access_token_hash,
    grant: Grant::from_row
});

impl FromRow for ConsentRequest {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let session = TokenHash(row.hash("session_hash", "a consent question's session")?);
        let (subject, request) = (row.get("subject")?, row.get("request")?);
        Ok(Self { subject, session, request, expires_at: row.get("expires_at_ms")? })
    }
}

const CREATE_CONSENT_REQUEST: &str = "INSERT INTO consent_requests (token_hash, subject, session_hash, request, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5)";
const CONSUME_CONSENT_REQUEST: &str = "DELETE FROM consent_requests WHERE token_hash = $1 \
    RETURNING subject, session_hash, request, expires_at_ms";
const SAVE_CONSENT: &str = "INSERT INTO consents (subject, client_id, scope, granted_at_ms) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (subject, client_id, scope) DO NOTHING";
const DELETE_CONSENTS: &str = "DELETE FROM consents WHERE subject = $1 AND client_id = $2";
const CONSENTED_CLIENTS: &str =
    "SELECT DISTINCT client_id FROM consents WHERE subject = $1 ORDER BY client_id";
const CONSENTS: &str = "SELECT scope FROM consents WHERE subject = $1 AND client_id = $2 ORDER BY scope";
const ISSUE: &str = "INSERT INTO grants (client_id, redirect_uri, code_challenge, subject, password_version, scope, nonce, \
    sid, amr, authenticated_at_ms, code_hash, code_expires_at_ms, delete_after_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
/// Right of `=`, columns have their values from before the update. A code of a session that has ended since is void.
const REDEEM: &str = "UPDATE grants SET redemption_count = redemption_count + 1, \
    access_token_hash = CASE WHEN redemption_count = 0 AND code_expires_at_ms > $2 AND client_id = $3 AND redirect_uri = $4 \
        AND code_challenge = $5 AND EXISTS (SELECT 1 FROM provider_sessions s WHERE s.sid = grants.sid) THEN $6 ELSE NULL END, \
    access_expires_at_ms = CASE WHEN redemption_count = 0 AND code_expires_at_ms > $2 AND client_id = $3 AND redirect_uri = $4 \
        AND code_challenge = $5 AND EXISTS (SELECT 1 FROM provider_sessions s WHERE s.sid = grants.sid) THEN $7 ELSE NULL END \
    WHERE code_hash = $1 RETURNING redemption_count, code_expires_at_ms, access_token_hash, client_id, redirect_uri, \
    code_challenge, subject, password_version, scope, nonce, sid, amr, authenticated_at_ms";
const ACCESS: &str = "SELECT client_id, redirect_uri, code_challenge, subject, password_version, scope, nonce, \
    sid, amr, authenticated_at_ms FROM grants WHERE access_token_hash = $1 AND access_expires_at_ms > $2";
const DELETE_EXPIRED: &str = "DELETE FROM grants WHERE code_hash IN \
    (SELECT code_hash FROM grants WHERE delete_after_ms <= $1 LIMIT $2)";
const DELETE_EXPIRED_CONSENT_REQUESTS: &str = "DELETE FROM consent_requests WHERE token_hash IN \
    (SELECT token_hash FROM consent_requests WHERE expires_at_ms <= $1 LIMIT $2)";

fn issue(new: &NewAuthorizationCode) -> Query {
    let NewAuthorizationCode { code, grant, expires_at, delete_after } = new;
    query(ISSUE)
        .bind(grant.client_id.as_str())
        .bind(grant.redirect_uri.as_str())
        .bind(grant.code_challenge.as_str())
        .bind(grant.subject.as_str())
        .bind(grant.password_version)
        .bind(grant.scope.as_str())
        .bind(grant.nonce.as_deref())
        .bind(grant.sid.as_str())
        .bind(grant.amr.as_str())
        .bind(grant.authenticated_at.0)
        .bind(code.0.as_slice())
        .bind(expires_at.0)
        .bind(delete_after.0)
}

fn ensure_no_nul(what: &'static str, texts: &[&str]) -> Result<(), ProviderError> {
    if texts.iter().any(|text| text.contains('\0')) {
        return Err(DbError::NulCharacter { what }.into());
    }
    Ok(())
}

/// Consents, authorization codes and access tokens of the built-in identity provider.
#[derive(Clone)]
pub struct Grants {
    pub(crate) db: Db,
}

impl Grants {
    pub async fn create_consent_request(
        &self,
        token: TokenHash,
        consent_request: ConsentRequest,
    ) -> Result<(), ProviderError> {
        ensure_no_nul("the request", &[&consent_request.request])?;
        let create = query(CREATE_CONSENT_REQUEST)
            .bind(token.0.as_slice())
            .bind(consent_request.subject.as_str())
            .bind(consent_request.session.0.as_slice())
            .bind(consent_request.request.as_str())
            .bind(consent_request.expires_at.0);
        self.db.execute(create, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// Returns it once. `None` if it does not exist or has expired.
    pub async fn consume_consent_request(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<ConsentRequest>, ProviderError> {
        let take = query(CONSUME_CONSENT_REQUEST).bind(token.0.as_slice());
        let taken: Vec<ConsentRequest> = self.db.write_returning(take, COMMAND_RETRY_LIMIT).await?;
        Ok(taken.into_iter().next().filter(|consent_request| consent_request.expires_at > now))
    }

    pub async fn save_consent(&self, consent: Consent) -> Result<(), ProviderError> {
        let save = query(SAVE_CONSENT)
            .bind(consent.subject.as_str())
            .bind(consent.client_id.as_str())
            .bind(consent.scope.as_str())
            .bind(consent.at.0);
        self.db.execute(save, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// Revokes every consent for this application and returns how many there were.
    pub async fn revoke_consents(&self, subject: &str, client_id: &str) -> Result<u64, ProviderError> {
        let delete = query(DELETE_CONSENTS).bind(subject).bind(client_id);
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }

    /// Every scope that the person has allowed for this application.
    pub async fn consents(&self, subject: &str, client_id: &str) -> Result<Vec<String>, ProviderError> {
        Ok(self.db.fetch_all(query(CONSENTS).bind(subject).bind(client_id)).await?)
    }

    /// The applications that the person has allowed anything.
    pub async fn consented_clients(&self, subject: &str) -> Result<Vec<String>, ProviderError> {
        Ok(self.db.fetch_all(query(CONSENTED_CLIENTS).bind(subject)).await?)
    }

    /// Also records that the application is signed in to in the grant's session.
    pub async fn issue_code(&self, new: NewAuthorizationCode) -> Result<(), ProviderError> {
        let grant = &new.grant;
        let nonce = grant.nonce.as_deref().unwrap_or_default();
        ensure_no_nul("the grant", &[&grant.redirect_uri, &grant.scope, nonce])?;
        let (issue, record) = (issue(&new), record_client(&grant.sid, &grant.client_id));
        let step = move |tx: &mut Tx<'_>| {
            issue.execute(tx)?;
            record.execute(tx)
        };
        self.db.write(step).await?;
        Ok(())
    }

    /// A code can be presented once, whether or not it matches, while its session goes on. At most one of several concurrent calls gets a token,
    /// and a second presentation revokes that token.
    pub async fn redeem_code(&self, redemption: CodeRedemption) -> Result<RedeemOutcome, ProviderError> {
        let CodeRedemption {
            code,
            client_id,
            redirect_uri,
            code_challenge,
            access_token,
            access_expires_at,
            now,
        } = &redemption;
        ensure_no_nul("the request", &[client_id, redirect_uri, code_challenge])?;
        let redeem = query(REDEEM)
            .bind(code.0.as_slice())
            .bind(now.0)
            .bind(client_id.as_str())
            .bind(redirect_uri.as_str())
            .bind(code_challenge.as_str())
            .bind(access_token.0.as_slice())
            .bind(access_expires_at.0);
        let found: Vec<RedeemedRow> = self.db.write_returning(redeem, COMMAND_RETRY_LIMIT).await?;
        let Some(found) = found.into_iter().next() else { return Ok(RedeemOutcome::Unknown) };
        let grant = found.grant;
        Ok(match (found.redemption_count, found.access_token_hash) {
            (1, Some(_)) => RedeemOutcome::Granted(grant),
            (1, None) => RedeemOutcome::Rejected { grant, is_expired: found.code_expires_at <= *now },
            _ => RedeemOutcome::Replayed(grant),
        })
    }

    /// The grant of an access token that has not expired.
    pub async fn grant_for_access_token(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<Grant>, ProviderError> {
        Ok(self.db.fetch_optional(query(ACCESS).bind(token.0.as_slice()).bind(now.0)).await?)
    }

    /// Deletes expired grants and consent questions, up to `limit` each. Returns how many.
    pub async fn delete_expired_grants(&self, now: UnixMillis, limit: u32) -> Result<u64, ProviderError> {
        let mut deleted = 0;
        for sql in [DELETE_EXPIRED, DELETE_EXPIRED_CONSENT_REQUESTS] {
            let delete = query(sql).bind(now.0).bind(i64::from(limit));
            deleted += self.db.execute(delete, COMMAND_RETRY_LIMIT).await?;
        }
        Ok(deleted)
    }
}
