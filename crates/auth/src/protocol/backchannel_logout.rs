//! Back-channel logout (OpenID Connect Back-Channel Logout 1.0): when a session ends here, every application that was
//! signed in to in it gets a logout token, without the browser. Sessions that merely expire are not announced.
//!
//! 1. The store adds a row for each application in the transaction that ends the session, so none is lost.
//! 2. Every process with the provider runs one worker, which claims due rows. A claim keeps two processes from sending
//!    the same token at the same time.
//! 3. The token is signed at each attempt, because it is valid for two minutes only. An application that does not accept
//!    it gets another one later, for up to an hour.

use super::id_token::sign_jwt;
use super::limits::{
    BACKCHANNEL_BATCH, BACKCHANNEL_CLAIM_TIME, BACKCHANNEL_FIRST_RETRY, BACKCHANNEL_LIFETIME,
    BACKCHANNEL_MAX_RETRY, BACKCHANNEL_POLL_INTERVAL, BACKCHANNEL_RETRY_FACTOR, BACKCHANNEL_TIMEOUT,
    LOGOUT_TOKEN_TTL,
};
use super::parameters::to_query;
use super::signing_keys::key_ring;
use crate::Provider;
use chancery_domain::{SecretToken, UnixMillis};
use chancery_http_client::{OwnCertificates, client_builder_trusting};
use chancery_store::{BackchannelLogout, DbError};
use reqwest::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::{Map, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const TOKEN_TYPE: &str = "logout+jwt";
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// Sends logout tokens.
#[derive(Clone)]
pub struct BackchannelLogoutWorker {
    provider: Arc<Provider>,
    client: reqwest::Client,
}

impl BackchannelLogoutWorker {
    /// Our portal is one of the applications.
    pub fn new(provider: Arc<Provider>, own_certificates: &OwnCertificates) -> Result<Self, reqwest::Error> {
        // Applications are servers of the firm, which a proxy for the internet does not reach.
        let client =
            client_builder_trusting(own_certificates).no_proxy().timeout(BACKCHANNEL_TIMEOUT).build()?;
        Ok(Self { provider, client })
    }

    /// Runs until dropped.
    pub async fn run(self) {
        loop {
            let wait = match self.send_due().await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "reading logout tokens to send failed, retrying");
                    BACKCHANNEL_POLL_INTERVAL
                }
            };
            tokio::select! {
                () = self.provider.store.backchannel_logouts.wait_for_ended_session() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sends everything that is due. Returns how long to wait for more.
    pub async fn send_due(&self) -> Result<Duration, DbError> {
        let logouts = &self.provider.store.backchannel_logouts;
        loop {
            let now = self.provider.clock.now();
            // Claiming takes the write lock, so look first.
            match logouts.next_backchannel_logout_at().await? {
                None => return Ok(BACKCHANNEL_POLL_INTERVAL),
                Some(next) if next > now => {
                    let wait = Duration::from_millis(u64::try_from(next.0 - now.0).unwrap_or(0));
                    return Ok(wait.min(BACKCHANNEL_POLL_INTERVAL));
                }
                Some(_) => {}
            }
            let claim = SecretToken::generate(self.provider.randomness.as_ref());
            let claim_ends_at = now.after(BACKCHANNEL_CLAIM_TIME);
            let claimed =
                logouts.claim_backchannel_logouts(&claim, now, claim_ends_at, BACKCHANNEL_BATCH).await?;
            if claimed.is_empty() {
                return Ok(BACKCHANNEL_POLL_INTERVAL);
            }
            let mut sends = JoinSet::new();
            for logout in claimed {
                let worker = self.clone();
                sends.spawn(async move { worker.process(&logout).await });
            }
            while sends.join_next().await.is_some() {}
        }
    }

    async fn process(&self, logout: &BackchannelLogout) {
        let (client_id, attempt) = (logout.client_id.as_str(), logout.attempt);
        let logouts = &self.provider.store.backchannel_logouts;
        let stored = match self.send(logout).await {
            Ok(()) => logouts.finish_backchannel_logout(logout).await,
            Err(error) => match next_attempt(attempt, logout.first_attempt_at, self.provider.clock.now()) {
                Some(at) => {
                    tracing::warn!(client_id, attempt, error, "logout token not delivered, retrying");
                    logouts.retry_backchannel_logout(logout, at).await
                }
                None => {
                    tracing::warn!(client_id, attempt, error, "logout token not delivered, given up");
                    logouts.finish_backchannel_logout(logout).await
                }
            },
        };
        match stored {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(client_id, attempt, "logout token was claimed again, it may be sent twice");
            }
            Err(error) => tracing::warn!(client_id, attempt, %error, "recording a sent logout token failed"),
        }
    }

    /// An application that is gone, or has no address for logout tokens, needs none.
    async fn send(&self, logout: &BackchannelLogout) -> Result<(), String> {
        let client = self.provider.settings.client(&logout.client_id);
        let Some(uri) = client.and_then(|client| client.backchannel_logout_uri.as_deref()) else {
            return Ok(());
        };
        let token = self.logout_token(logout).await?;
        let request = self
            .client
            .post(uri)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(CACHE_CONTROL, "no-store")
            .body(to_query([("logout_token", token.as_str())]));
        // The body of the reply is not read.
        match request.send().await.map_err(chancery_http_client::describe)?.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("HTTP {}", status.as_u16())),
        }
    }

    async fn logout_token(&self, logout: &BackchannelLogout) -> Result<String, String> {
        let Provider { settings, store, clock, randomness, .. } = self.provider.as_ref();
        let now = clock.now();
        let keys =
            key_ring(store.as_ref(), randomness.as_ref(), now).await.map_err(|error| error.to_string())?;
        let key = keys.active_key().map_err(|error| error.to_string())?;
        let now_s = now.0 / 1000;
        let mut claims = Map::new();
        claims.insert("iss".to_owned(), settings.issuer.as_str().into());
        claims.insert("sub".to_owned(), logout.subject.as_str().into());
        claims.insert("aud".to_owned(), logout.client_id.as_str().into());
        claims.insert("iat".to_owned(), now_s.into());
        claims.insert("exp".to_owned(), (now_s + LOGOUT_TOKEN_TTL.as_secs() as i64).into());
        let id = SecretToken::generate(randomness.as_ref());
        claims.insert("jti".to_owned(), id.reveal().into());
        claims.insert("sid".to_owned(), logout.sid.as_str().into());
        claims.insert("events".to_owned(), json!({ LOGOUT_EVENT: {} }));
        Ok(sign_jwt(&key, TOKEN_TYPE, claims))
    }
}

/// When the next attempt is, after `attempt` attempts. `None` if it is given up.
fn next_attempt(attempt: u32, first_attempt_at: UnixMillis, now: UnixMillis) -> Option<UnixMillis> {
    let last = first_attempt_at.after(BACKCHANNEL_LIFETIME);
    if now >= last {
        return None;
    }
    let factor = BACKCHANNEL_RETRY_FACTOR.saturating_pow(attempt.saturating_sub(1));
    let wait = BACKCHANNEL_FIRST_RETRY.saturating_mul(factor).min(BACKCHANNEL_MAX_RETRY);
    Some(now.after(wait).min(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_and_end_after_an_hour() {
        let start = UnixMillis(1_800_000_000_000);
        let (mut now, mut attempt, mut waits) = (start, 1, Vec::new());
        while let Some(next) = next_attempt(attempt, start, now) {
            waits.push((next.0 - now.0) / 1000);
            (now, attempt) = (next, attempt + 1);
        }
        assert_eq!(now, start.after(BACKCHANNEL_LIFETIME), "the last attempt is an hour after the first");
        assert_eq!(waits[..6], [2, 6, 18, 54, 162, 486]);
        assert!(waits.len() < 16 && waits.iter().all(|wait| *wait <= 600), "{waits:?}");
        assert_eq!(next_attempt(u32::MAX, start, start), Some(start.after(BACKCHANNEL_MAX_RETRY)));
    }
}
