//! The redirect from `/authorize` to the sign-in page and back. A user who returns has signed in for this request,
//! which satisfies `prompt=login` and `max_age`. The proof must therefore be ours, for this exact request, recent, and
//! used once.

use super::authorization_request::AuthorizationRequest;
use super::limits::SIGN_IN_REDIRECT;
use super::signing_keys::after;
use crate::{Provider, store_error_page};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{SecretToken, ThrottleDecision, ThrottleKey, UnixMillis};
use chancery_web::ErrorPage;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const SECRET_NAME: &str = "authorize-detour";

/// Adds the proof that the user is sent to sign in now.
pub(super) async fn with_detour_mark(
    provider: &Provider,
    request: AuthorizationRequest,
    now: UnixMillis,
) -> Result<AuthorizationRequest, ErrorPage> {
    let signature = URL_SAFE_NO_PAD.encode(mac(provider, &request, now).await?.finalize().into_bytes());
    Ok(AuthorizationRequest { sign_in_detour: Some(format!("{}.{signature}", now.0)), ..request })
}

/// When the user was sent to sign in for this request. `None` if we did not send them, or too long ago.
pub(super) async fn sent_at(
    provider: &Provider,
    request: &AuthorizationRequest,
    now: UnixMillis,
) -> Result<Option<UnixMillis>, ErrorPage> {
    let mark = request.sign_in_detour.as_deref().and_then(|mark| mark.split_once('.'));
    let Some((sent_at, signature)) = mark else { return Ok(None) };
    let (Ok(sent_at), Ok(signature)) = (sent_at.parse().map(UnixMillis), URL_SAFE_NO_PAD.decode(signature))
    else {
        return Ok(None);
    };
    let is_ours = mac(provider, request, sent_at).await?.verify_slice(&signature).is_ok();
    let is_recent = sent_at <= now && now < after(sent_at, SIGN_IN_REDIRECT);
    Ok((is_ours && is_recent).then_some(sent_at))
}

/// Marks the proof as used. Returns whether this was the first use.
pub(super) async fn consume(
    provider: &Provider,
    request: &AuthorizationRequest,
    now: UnixMillis,
) -> Result<bool, ErrorPage> {
    let mark = request.sign_in_detour.as_deref().unwrap_or_default();
    let used = provider.store.throttles.count_throttle(ThrottleKey::SignInRedirect(mark), now).await;
    Ok(matches!(used.map_err(|error| store_error_page(&error))?, ThrottleDecision::Allowed(_)))
}

/// Covers the whole request without the `sign_in_detour` parameter.
async fn mac(
    provider: &Provider,
    request: &AuthorizationRequest,
    sent_at: UnixMillis,
) -> Result<Hmac<Sha256>, ErrorPage> {
    let secret = provider.detour_secret.get_or_try_init(|| async {
        let candidate = SecretToken::generate(provider.randomness.as_ref());
        provider.store.secrets.shared_secret(SECRET_NAME, &candidate).await
    });
    let secret = secret.await.map_err(|error| store_error_page(&error))?;
    let mac = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes());
    let mac = mac.map_err(|_| ErrorPage::internal("a shared secret is no key"))?;
    let unmarked = AuthorizationRequest { sign_in_detour: None, ..request.clone() };
    Ok(mac.chain_update(format!("{}.{}", sent_at.0, unmarked.to_query())))
}
