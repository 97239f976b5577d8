//! Known devices: browsers in which a person has signed in before. Their attempts are counted apart from all others
//! (`AttemptOrigin::KnownDevice`), so that strangers who guess from many networks cannot lock the person out. The browser
//! has a random token in a cookie, and only its hash is stored with the account. It proves nothing else: signing in needs
//! the same credentials as anywhere.

use crate::limits::KNOWN_DEVICE_TTL;
use crate::{Provider, store_error_page};
use axum::http::{HeaderMap, HeaderValue};
use chancery_domain::{EmailAddress, SecretToken, TokenHash};
use chancery_store::NewKnownDevice;
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie};

pub(crate) const KNOWN_DEVICE_COOKIE: Cookie = Cookie { name: "__Host-known_device", path: "/" };

fn device_token(headers: &HeaderMap) -> Option<SecretToken> {
    match find_cookie(headers, KNOWN_DEVICE_COOKIE.name) {
        CookieLookup::One(value) => SecretToken::parse(value),
        CookieLookup::None | CookieLookup::Multiple => None,
    }
}

/// The hash of the browser's token, if the account with this address was signed in in it before.
pub(crate) async fn known_device(
    provider: &Provider,
    headers: &HeaderMap,
    email: &EmailAddress,
) -> Result<Option<TokenHash>, ErrorPage> {
    let Some(token) = device_token(headers) else { return Ok(None) };
    let is_known =
        provider.store.known_devices.is_known_device(token.hash(), email, provider.clock.now()).await;
    let is_known = is_known.map_err(|error| store_error_page(&error))?;
    Ok(is_known.then(|| token.hash()))
}

/// The hash of the browser's token, if any account was signed in in it before.
pub(crate) async fn device_of_anyone(
    provider: &Provider,
    headers: &HeaderMap,
) -> Result<Option<TokenHash>, ErrorPage> {
    let Some(token) = device_token(headers) else { return Ok(None) };
    let devices = &provider.store.known_devices;
    let is_known = devices.is_known_device_of_anyone(token.hash(), provider.clock.now()).await;
    Ok(is_known.map_err(|error| store_error_page(&error))?.then(|| token.hash()))
}

/// Remembers that the account was signed in in this browser. Returns the browser's cookie.
pub(crate) async fn remember_device(
    provider: &Provider,
    headers: &HeaderMap,
    subject: &str,
) -> Result<HeaderValue, ErrorPage> {
    let (now, browser_token) = (provider.clock.now(), device_token(headers));
    let new_token = SecretToken::generate(provider.randomness.as_ref());
    let new = NewKnownDevice {
        subject: subject.to_owned(),
        browser_token: browser_token.as_ref().map(SecretToken::hash),
        new_token: new_token.hash(),
        now,
        expires_at: now.after(KNOWN_DEVICE_TTL),
    };
    let is_own = provider.store.known_devices.remember_device(new).await;
    let is_own = is_own.map_err(|error| store_error_page(&error))?;
    let token = browser_token.filter(|_| is_own).unwrap_or(new_token);
    KNOWN_DEVICE_COOKIE
        .set(token.reveal(), Some(KNOWN_DEVICE_TTL))
        .ok_or_else(|| ErrorPage::internal("the device token does not fit in a header"))
}
