//! The way from `/authorize` to the sign-in page and back. Whoever comes back has signed in for this request, which
//! `prompt=login` and `max_age` ask for; so the mark of it must be ours, of this very request, young, and used once.

use super::authorization_request::AuthorizationRequest;
use super::limits::SIGN_IN_DETOUR;
use super::signing_keys::after;
use crate::{Provider, refused};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{SecretToken, ThrottleDecision, ThrottleKey, UnixMillis};
use chancery_web::ErrorPage;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const SECRET_NAME: &str = "authorize-detour";

/// The request with the mark that the person is sent to sign in now.
pub(super) async fn marked(
    provider: &Provider,
    request: AuthorizationRequest,
    now: UnixMillis,
) -> Result<AuthorizationRequest, ErrorPage> {
    let seal = URL_SAFE_NO_PAD.encode(mac(provider, &request, now).await?.finalize().into_bytes());
    Ok(AuthorizationRequest { detour: Some(format!("{}.{seal}", now.0)), ..request })
}

/// When the person was sent to sign in for this request; None where we did not send them, or too long ago.
pub(super) async fn sent_at(
    provider: &Provider,
    request: &AuthorizationRequest,
    now: UnixMillis,
) -> Result<Option<UnixMillis>, ErrorPage> {
    let mark = request.detour.as_deref().and_then(|mark| mark.split_once('.'));
    let Some((sent_at, seal)) = mark else { return Ok(None) };
    let (Ok(sent_at), Ok(seal)) = (sent_at.parse().map(UnixMillis), URL_SAFE_NO_PAD.decode(seal)) else {
        return Ok(None);
    };
    let is_ours = mac(provider, request, sent_at).await?.verify_slice(&seal).is_ok();
    let is_young = sent_at <= now && now < after(sent_at, SIGN_IN_DETOUR);
    Ok((is_ours && is_young).then_some(sent_at))
}

/// Whether this is the first time that the mark is of use.
pub(super) async fn use_up(
    provider: &Provider,
    request: &AuthorizationRequest,
    now: UnixMillis,
) -> Result<bool, ErrorPage> {
    let mark = request.detour.as_deref().unwrap_or_default();
    let used = provider.store.throttles.count_throttle(ThrottleKey::SignInDetour(mark), now).await;
    Ok(matches!(used.map_err(|error| refused(&error))?, ThrottleDecision::Allowed(_)))
}

/// Over the whole request, as it is without a mark.
async fn mac(
    provider: &Provider,
    request: &AuthorizationRequest,
    sent_at: UnixMillis,
) -> Result<Hmac<Sha256>, ErrorPage> {
    let secret = provider.detour_secret.get_or_try_init(|| async {
        let drawn = SecretToken::generate(provider.randomness.as_ref());
        provider.store.secrets.shared_secret(SECRET_NAME, &drawn).await
    });
    let secret = secret.await.map_err(|error| refused(&error))?;
    let mac = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes());
    let mac = mac.map_err(|_| ErrorPage::internal("a shared secret is no key"))?;
    let unmarked = AuthorizationRequest { detour: None, ..request.clone() };
    Ok(mac.chain_update(format!("{}.{}", sent_at.0, unmarked.to_query())))
}
