//! `GET /auth/sign-in?return_to=…`: starts a sign-in and redirects the browser to the identity provider.
//! `as=someone-else` adds `prompt=login`, so that the provider asks for credentials despite its session. Without it, a
//! user who is signed in there with the wrong account would come back with it every time. The same applies after a
//! sign-out of the portal alone (`ASK_AGAIN_COOKIE`). `for=step-up` and `for=recheck` are about a session that goes on
//! (`confirmation`). Without one they are plain sign-ins: a link with `for=recheck` must not undo a sign-out.
//!
//! The cookie `__Host-sign_in` binds the callback to the browser that started the sign-in. All tabs of a browser share
//! it. Each tab's sign-in is stored under the cookie's token and that tab's `state` together, so that each can be
//! finished once, and only in this browser.

use crate::error::PageError;
use crate::sign_in::identity::provider::{LoginPrompt, SignInSecrets};
use crate::sign_in::known_browser::known_browser;
use crate::sign_in::links::{RECHECK, SOMEONE_ELSE, STEP_UP, start};
use crate::sign_in::session::MaybeSignedIn;
use crate::sign_in::step_up::REQUESTED_MAX_AGE;
use crate::sign_in::throttle::RateLimitExceeded;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{LocalPath, SecretToken, UnixMillis};
use chancery_store::{PendingSignIn, SignInPurpose};
use chancery_web::{Cookie, CookieLookup, ErrorPage, Navigation, find_cookie};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SIGN_IN_COOKIE: Cookie = Cookie { name: "__Host-sign_in", path: "/" };

/// How long a person may take at the identity provider.
const SIGN_IN_TTL: Duration = Duration::from_secs(10 * 60);

pub(crate) async fn handle(
    _: Navigation,
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    MaybeSignedIn(signed_in): MaybeSignedIn,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    let return_to = return_to(&query)?;
    let now = portal.clock.monotonic();
    let known_browser = known_browser(&portal, &headers).await?;
    if known_browser.is_none_or(|browser| portal.known_browser_throttle.count(&browser, now).is_err()) {
        portal.sign_in_throttle.count(&visitor.ip_address, now).map_err(too_many)?;
    }

    let randomness = portal.randomness.as_ref();
    let browser = match find_cookie(&headers, SIGN_IN_COOKIE.name) {
        CookieLookup::One(value) => SecretToken::parse(value),
        CookieLookup::None | CookieLookup::Multiple => None,
    };
    let browser = browser.unwrap_or_else(|| SecretToken::generate(randomness));
    let [state, nonce, verifier] = [(); 3].map(|()| SecretToken::generate(randomness));
    let secrets =
        SignInSecrets { state: state.reveal(), nonce: nonce.reveal(), pkce_verifier: verifier.reveal() };
    let purpose = match purpose(&query) {
        _ if visitor.must_ask_again || signed_in.is_none() => SignInPurpose::SignIn,
        SignInPurpose::Recheck if portal.settings.identity.recheck_after.is_none() => SignInPurpose::SignIn,
        purpose => purpose,
    };
    let prompt = match purpose {
        SignInPurpose::SignIn if visitor.must_ask_again || has(&query, SOMEONE_ELSE) => LoginPrompt::Always,
        SignInPurpose::SignIn => LoginPrompt::IfNeeded,
        SignInPurpose::StepUp => LoginPrompt::IfOlderThan(REQUESTED_MAX_AGE),
        SignInPurpose::Recheck => LoginPrompt::Never,
    };
    let url = portal.identity.authorization_url(&secrets, prompt).await;
    let url = url.map_err(|error| error.error_page(&return_to))?;

    let ttl_ms = i64::try_from(SIGN_IN_TTL.as_millis()).unwrap_or(i64::MAX);
    let sign_in = PendingSignIn {
        state: state.reveal().to_owned(),
        nonce: nonce.reveal().to_owned(),
        pkce_verifier: verifier.reveal().to_owned(),
        return_to,
        purpose,
        expires_at: UnixMillis(portal.clock.now().0.saturating_add(ttl_ms)),
    };
    portal.store.sign_ins.begin_sign_in(browser.hash_with(state.reveal()), sign_in).await?;

    let unsendable = |what: &str| ErrorPage::internal(format!("{what} does not fit in a header"));
    let location = HeaderValue::from_str(&url).map_err(|_| unsendable("the provider's address"))?;
    let cookie = SIGN_IN_COOKIE.set(browser.reveal(), Some(SIGN_IN_TTL));
    let cookie = cookie.ok_or_else(|| unsendable("the sign-in's cookie"))?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, location), (header::SET_COOKIE, cookie)]).into_response())
}

/// A path of this portal other than the sign-in pages; by default the start page.
fn return_to(query: &[(String, String)]) -> Result<LocalPath, ErrorPage> {
    let mut values = query.iter().filter(|(name, _)| name == "return_to").map(|(_, value)| value.as_str());
    let path = match (values.next(), values.next()) {
        (Some(value), None) if !value.starts_with("/auth/") => LocalPath::parse(value),
        _ => None,
    };
    path.map_or_else(start, Ok)
}

fn purpose(query: &[(String, String)]) -> SignInPurpose {
    if has(query, STEP_UP) {
        SignInPurpose::StepUp
    } else if has(query, RECHECK) {
        SignInPurpose::Recheck
    } else {
        SignInPurpose::SignIn
    }
}

fn has(query: &[(String, String)], parameter: (&str, &str)) -> bool {
    query.iter().any(|(name, value)| (name.as_str(), value.as_str()) == parameter)
}

fn too_many(exceeded: RateLimitExceeded) -> ErrorPage {
    ErrorPage::too_many_requests("Too many sign-ins were started.", exceeded.retry_after_s)
        .advice("Try again later. If it happens again, contact your administrator.")
        .with_log_detail("sign-in throttle exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_to_accepts_local_paths_outside_auth_only() {
        let parsed = |values: &[&str]| {
            let query: Vec<_> =
                values.iter().map(|value| ("return_to".to_owned(), (*value).to_owned())).collect();
            return_to(&query).unwrap().as_str().to_owned()
        };
        assert_eq!(parsed(&["/clients/7?tab=letters"]), "/clients/7?tab=letters");
        for values in [
            &[][..],
            &["//evil.example"],
            &["https://evil.example"],
            &["/\\evil.example"],
            &["/auth/callback?code=x"],
            &["/auth/sign-in"],
            &["/clients/1", "/clients/2"],
        ] {
            assert_eq!(parsed(values), "/clients", "{values:?}");
        }
    }
}
