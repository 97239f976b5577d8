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
use ring::hmac;

const SECRET_NAME: &str = "authorize-detour";

/// Adds the proof that the user is sent to sign in now.
pub(super) async fn with_detour_mark(
    provider: &Provider,
    request: AuthorizationRequest,
    now: UnixMillis,
) -> Result<AuthorizationRequest, ErrorPage> {
    let mark = mark(&signing_key(provider).await?, &request, now);
    Ok(AuthorizationRequest { sign_in_detour: Some(mark), ..request })
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
    let key = signing_key(provider).await?;
    let is_ours = hmac::verify(&key, signed_text(request, sent_at).as_bytes(), &signature).is_ok();
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

async fn signing_key(provider: &Provider) -> Result<hmac::Key, ErrorPage> {
    let secret = provider.detour_secret.get_or_try_init(|| async {
        let candidate = SecretToken::generate(provider.randomness.as_ref());
        provider.store.secrets.shared_secret(SECRET_NAME, &candidate).await
    });
    let secret = secret.await.map_err(|error| store_error_page(&error))?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes()))
}

fn mark(key: &hmac::Key, request: &AuthorizationRequest, sent_at: UnixMillis) -> String {
    let signature = hmac::sign(key, signed_text(request, sent_at).as_bytes());
    format!("{}.{}", sent_at.0, URL_SAFE_NO_PAD.encode(signature))
}

/// The whole request without the `sign_in_detour` parameter.
fn signed_text(request: &AuthorizationRequest, sent_at: UnixMillis) -> String {
    let unmarked = AuthorizationRequest { sign_in_detour: None, ..request.clone() };
    format!("{}.{}", sent_at.0, unmarked.to_query())
}

#[cfg(test)]
mod tests {
    use super::super::authorization_request::{Prompt, RedirectTarget};
    use super::super::scope::Scope;
    use super::*;

    #[test]
    fn mark_signs_the_time_and_the_request_without_its_mark() {
        let request = AuthorizationRequest {
            client_id: "portal".to_owned(),
            redirect_target: RedirectTarget {
                redirect_uri: "https://portal.example.com/auth/callback".to_owned(),
                state: Some("af0ifjsldkj".to_owned()),
            },
            scope: Scope { has_email: true },
            nonce: None,
            code_challenge: "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM".to_owned(),
            prompt: Prompt::default(),
            max_age_s: None,
            acr_values: None,
            login_hint: None,
            id_token_hint: None,
            sign_in_detour: Some("ignored".to_owned()),
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        let sent_at = UnixMillis(1_600_000_000_000);
        assert_eq!(
            mark(&key, &request, sent_at),
            "1600000000000.4vcjQ415pVAXlfDbUsS6njgylsfpC1cUiuIn1P4rt1M"
        );
    }
}
