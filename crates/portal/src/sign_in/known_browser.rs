//! Browsers in which someone has signed in before. Their sign-ins are counted apart from those of their network, so that
//! nobody else there can use them up. Each sign-in gives the browser a cookie: a random ID, when it expires, and an HMAC of
//! both, so that nothing is stored. It proves nothing else: signing in needs the same credentials as anywhere.

use crate::error::PageError;
use crate::state::Portal;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{SecretToken, UnixMillis};
use chancery_store::DbError;
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie};
use ring::hmac;
use std::time::Duration;

const KNOWN_BROWSER_COOKIE: Cookie = Cookie { name: "__Host-known_browser", path: "/" };
/// As long as the built-in provider knows a device.
const KNOWN_BROWSER_TTL: Duration = Duration::from_secs(180 * 24 * 3_600);
const SECRET_NAME: &str = "portal-known-browser";

/// The ID of the browser, if someone has signed in in it before.
pub(crate) async fn known_browser(portal: &Portal, headers: &HeaderMap) -> Result<Option<String>, DbError> {
    let CookieLookup::One(value) = find_cookie(headers, KNOWN_BROWSER_COOKIE.name) else { return Ok(None) };
    Ok(verified_id(&signing_key(portal).await?, value, portal.clock.now()))
}

/// The cookie of a browser in which someone has just signed in.
pub(crate) async fn remember_browser(portal: &Portal) -> Result<HeaderValue, PageError> {
    let id = SecretToken::generate(portal.randomness.as_ref());
    let expires_at = portal.clock.now().after(KNOWN_BROWSER_TTL);
    let value = signed(&signing_key(portal).await?, id.reveal(), expires_at);
    let cookie = KNOWN_BROWSER_COOKIE.set(&value, Some(KNOWN_BROWSER_TTL));
    Ok(cookie.ok_or_else(|| ErrorPage::internal("the browser's ID does not fit in a cookie"))?)
}

async fn signing_key(portal: &Portal) -> Result<hmac::Key, DbError> {
    let secret = portal.known_browser_secret.get_or_try_init(|| async {
        let candidate = SecretToken::generate(portal.randomness.as_ref());
        portal.store.secrets.shared_secret(SECRET_NAME, &candidate).await
    });
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret.await?.reveal().as_bytes()))
}

fn signed(key: &hmac::Key, id: &str, expires_at: UnixMillis) -> String {
    let text = format!("{id}.{}", expires_at.0);
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(key, text.as_bytes()));
    format!("{text}.{signature}")
}

fn verified_id(key: &hmac::Key, value: &str, now: UnixMillis) -> Option<String> {
    let (text, signature) = value.rsplit_once('.')?;
    hmac::verify(key, text.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
    let (id, expires_at) = text.split_once('.')?;
    (now < UnixMillis(expires_at.parse().ok()?)).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unchanged_cookie_names_a_browser_and_only_until_it_expires() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        let expires_at = UnixMillis(1_600_000_000_000);
        let value = signed(&key, "browser", expires_at);
        let before = UnixMillis(expires_at.0 - 1);
        assert_eq!(verified_id(&key, &value, before).as_deref(), Some("browser"));
        assert_eq!(verified_id(&key, &value, expires_at), None);
        let other_key = hmac::Key::new(hmac::HMAC_SHA256, b"other");
        assert_eq!(verified_id(&other_key, &value, before), None);
        let changes = [value.replace("brow", "prow"), value.replace(".16", ".17"), format!("{value}A")];
        for forged in changes.iter().map(String::as_str).chain(["", ".", "..", "browser.1700000000000"]) {
            assert_eq!(verified_id(&key, forged, before), None, "{forged}");
        }
    }
}
