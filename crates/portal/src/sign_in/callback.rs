//! `GET /auth/callback`: the browser returns from the identity provider.
//!
//! 1. The reply must carry a `state` that this browser (cookie `__Host-sign_in`) started less than ten minutes ago. It is
//!    consumed at once, so it cannot be used again, whatever the outcome.
//! 2. The reply must come from the configured issuer (RFC 9207).
//! 3. An error from the provider becomes a page that says what to do.
//! 4. Otherwise the provider must prove who signed in (`identity`), and the person must meet what the configuration
//!    requires (`requirements`).
//! 5. Then the person is signed in (`finish`), or their session goes on (`confirmation`).
//!
//! A rejected sign-in does not affect an existing session of the browser.

use crate::error::PageError;
use crate::sign_in::authentication::Authentication;
use crate::sign_in::begin::SIGN_IN_COOKIE;
use crate::sign_in::confirmation;
use crate::sign_in::finish::{self, AuthenticatedIdentity};
use crate::sign_in::identity::claims::IdentityClaims;
use crate::sign_in::identity::error::IdentityProviderError;
use crate::sign_in::identity::provider::SignInSecrets;
use crate::sign_in::links::{SIGN_IN_AGAIN, sign_in_url, start};
use crate::sign_in::requirements;
use crate::sign_in::session::MaybeSignedIn;
use crate::sign_in::session_cookie::sent_token;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{Identity, LocalPath, SecretToken, UnixMillis};
use chancery_store::SignInPurpose;
use chancery_web::{CookieLookup, ErrorPage, Link, find_cookie};
use std::sync::Arc;

/// No provider sends longer codes.
const MAX_CODE_BYTES: usize = 4_096;
/// Maximum length of the provider's error text in the log.
const MAX_LOGGED_CHARS: usize = 200;

/// The unchecked parameters of the callback.
#[derive(Debug, Default, PartialEq, Eq)]
struct CallbackParams {
    state: Option<String>,
    code: Option<String>,
    issuer: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    MaybeSignedIn(signed_in): MaybeSignedIn,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    let params = CallbackParams::read(query).map_err(|why| wrong_browser_page(why, start()))?;
    let (Some(state), CookieLookup::One(browser)) =
        (&params.state, find_cookie(&headers, SIGN_IN_COOKIE.name))
    else {
        let why = "missing `state`, or not exactly one sign-in cookie";
        return Err(wrong_browser_page(why, start()).into());
    };
    let Some(browser) = SecretToken::parse(browser) else {
        return Err(wrong_browser_page("invalid sign-in cookie", start()).into());
    };
    let found = portal.store.sign_ins.consume_sign_in(browser.hash_with(state), portal.clock.now()).await?;
    let Some(sign_in) = found else { return Err(expired_page(&start()?).into()) };

    let (return_to, purpose) = (sign_in.return_to, sign_in.purpose);
    let signed_in = signed_in.filter(|_| purpose != SignInPurpose::SignIn);
    let rejected = |error: IdentityProviderError| error.error_page(&return_to);
    portal.identity.check_issuer(params.issuer.as_deref()).await.map_err(rejected)?;
    if let Some(error) = &params.error {
        if purpose == SignInPurpose::Recheck && ends_session(error) {
            return confirmation::end_and_sign_in(&portal, signed_in.as_ref(), &return_to, &visitor).await;
        }
        return Err(provider_error(error, params.error_description.as_deref(), &return_to).into());
    }
    if purpose != SignInPurpose::SignIn && signed_in.is_none() {
        // The session ended while the browser was at the provider, which may not have asked for anything.
        return confirmation::end_and_sign_in(&portal, None, &return_to, &visitor).await;
    }
    let Some(code) = params.code.filter(|code| !code.is_empty() && code.len() <= MAX_CODE_BYTES) else {
        return Err(wrong_browser_page("missing or invalid `code`", Ok(return_to)).into());
    };
    let secrets = SignInSecrets { state, nonce: &sign_in.nonce, pkce_verifier: &sign_in.pkce_verifier };
    let claims = portal.identity.authenticate(&code, &secrets).await.map_err(rejected)?;
    let identity = Identity { issuer: portal.identity.issuer().to_owned(), subject: claims.subject.clone() };
    let same_person = signed_in.as_ref().filter(|signed_in| signed_in.person.identity == identity);
    if let (None, Some(other), SignInPurpose::Recheck) = (same_person, &signed_in, purpose) {
        confirmation::end(&portal, other, &visitor).await?;
    }
    let authenticated = match authenticated(&portal, identity, claims, return_to) {
        Ok(authenticated) => authenticated,
        Err(error) => {
            // The session of a person who no longer meets the requirements ends.
            if let Some(signed_in) = same_person {
                confirmation::end(&portal, signed_in, &visitor).await?;
            }
            return Err(error.into());
        }
    };
    match (same_person, sent_token(&headers)?) {
        (Some(signed_in), Some(sent)) => {
            confirmation::confirm(&portal, signed_in, &sent, authenticated, purpose, &visitor).await
        }
        _ => finish::sign_in(&portal, authenticated, &visitor).await,
    }
}

/// The identity with what the configuration requires.
fn authenticated(
    portal: &Portal,
    identity: Identity,
    claims: IdentityClaims,
    return_to: LocalPath,
) -> Result<AuthenticatedIdentity, ErrorPage> {
    let directory_role = requirements::check(&portal.settings, &claims, &return_to)?;
    Ok(AuthenticatedIdentity {
        identity,
        is_email_verified: claims.is_email_verified,
        has_multiple_factors: claims.has_multiple_factors(),
        directory_role,
        authentication: Authentication {
            at: claims.authenticated_at_s.map(|seconds| UnixMillis(seconds.saturating_mul(1000))),
            sid: claims.sid,
            id_token: claims.id_token,
        },
        email: claims.email,
        return_to,
    })
}

/// Whether the provider says that the person is no longer signed in there, or no longer admitted.
fn ends_session(error: &str) -> bool {
    matches!(
        error,
        "login_required"
            | "interaction_required"
            | "consent_required"
            | "account_selection_required"
            | "access_denied"
    )
}

impl CallbackParams {
    /// Rejects repeated parameters, because another system could interpret them differently.
    fn read(query: Vec<(String, String)>) -> Result<Self, &'static str> {
        let mut params = Self::default();
        for (name, value) in query {
            let slot = match name.as_str() {
                "state" => &mut params.state,
                "code" => &mut params.code,
                "iss" => &mut params.issuer,
                "error" => &mut params.error,
                "error_description" => &mut params.error_description,
                _ => continue,
            };
            if slot.replace(value).is_some() {
                return Err("repeated parameter");
            }
        }
        Ok(params)
    }
}

fn wrong_browser_page(why: &str, return_to: Result<LocalPath, ErrorPage>) -> ErrorPage {
    let mut page = ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "sign_in_not_begun_here",
        "Sign-in not completed",
        "It was started in another browser, or this browser blocked the cookie.",
    )
    .advice("Sign in again in this browser. If it fails again, allow cookies for this site.")
    .with_log_detail(format!("callback rejected: {why}"));
    page.next_link = return_to.ok().map(|path| Link { href: sign_in_url(&path), label: SIGN_IN_AGAIN });
    page
}

fn expired_page(return_to: &LocalPath) -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "sign_in_over",
        "Sign-in expired",
        "It was already used, took longer than 10 minutes, or was started in another browser.",
    )
    .advice("Sign in again.")
    .next_link(sign_in_url(return_to), SIGN_IN_AGAIN)
    .with_log_detail("callback rejected: unknown, used or expired `state`")
}

/// The error codes are defined in RFC 6749 section 4.1.2.1 and OpenID Connect Core section 3.1.2.6.
fn provider_error(error: &str, description: Option<&str>, return_to: &LocalPath) -> ErrorPage {
    let detail = one_log_line(error, description);
    let page = match error {
        "access_denied" => ErrorPage::new(
            StatusCode::FORBIDDEN,
            "access_denied",
            "Sign-in not completed",
            "The sign-in was canceled, or your account is not allowed to use this portal.",
        )
        .advice("Sign in again and allow sharing your email address. If you did allow it, contact your administrator."),
        "login_required" | "interaction_required" | "consent_required" | "account_selection_required" => {
            ErrorPage::new(
                StatusCode::FORBIDDEN,
                "sign_in_unfinished",
                "Sign-in not completed",
                "The sign-in service needs more information from you.",
            )
            .advice("Sign in again and complete every step.")
        }
        "temporarily_unavailable" | "server_error" => {
            return IdentityProviderError::Unavailable(format!("callback error {detail}")).error_page(return_to);
        }
        _ => return IdentityProviderError::ClientRejected(format!("callback error {detail}")).error_page(return_to),
    };
    page.next_link(sign_in_url(return_to), SIGN_IN_AGAIN)
        .with_log_detail(format!("sign-in denied by the identity provider: {detail}"))
}

/// The provider's error as one short line, without control characters.
fn one_log_line(error: &str, description: Option<&str>) -> String {
    let line = |text: &str| -> String {
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_LOGGED_CHARS).collect()
    };
    match description {
        None => format!("`{}`", line(error)),
        Some(description) => format!("`{}`: {}", line(error), line(description)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn repeated_callback_parameters_are_rejected() {
        for name in ["state", "code", "iss", "error"] {
            assert!(
                CallbackParams::read(pairs(&[(name, "a"), ("other", "x"), (name, "a")])).is_err(),
                "{name}"
            );
        }
        let params = CallbackParams::read(pairs(&[("code", "c"), ("other", "x"), ("other", "y")])).unwrap();
        assert_eq!(params.code.as_deref(), Some("c"));
    }

    #[test]
    fn provider_errors_are_logged_as_one_short_line() {
        let detail = one_log_line("x\ny", Some(&"\r\n2026 forged line".repeat(50)));
        assert!(detail.lines().count() == 1 && detail.chars().count() < 300, "{detail}");
    }
}
