//! `GET /auth/sign-in?return_to=…`: begins a sign-in and sends the browser to the identity provider. With `as=someone-else` the
//! provider is told to ask who it is (`prompt=login`), though it knows the browser: without that, somebody who is signed
//! in there with the wrong account would come back with it every time.
//!
//! The cookie `sign_in` ties what comes back to the browser that began. It is the same for all tabs of a browser; what each
//! tab began is stored under the cookie's token and that tab's `state` together, so that each can be finished once, in this
//! browser alone.

use crate::failure::refused_by_store;
use crate::sign_in::finish::Visitor;
use crate::sign_in::identity::{Secrets, Wanted};
use crate::sign_in::throttle::Flood;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{LocalPath, SecretToken, UnixMillis};
use chancery_store::SignIn;
use chancery_web::{Cookie, Refusal, SentCookie, WayOn, sent_cookie};
use openidconnect::url::form_urlencoded;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SIGN_IN_COOKIE: Cookie = Cookie { name: "sign_in", path: "/auth" };

/// How long a person may take at the identity provider.
const SIGN_IN_LASTS: Duration = Duration::from_secs(10 * 60);

const SOMEONE_ELSE: (&str, &str) = ("as", "someone-else");

/// Where somebody goes who was going nowhere in particular.
const START: &str = "/clients";

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let return_to = return_to(&query)?;
    portal.sign_ins_begun.count(&visitor.place, portal.clock.monotonic()).map_err(too_many)?;

    let randomness = portal.randomness.as_ref();
    let browser = match sent_cookie(&headers, SIGN_IN_COOKIE.name) {
        SentCookie::One(value) => SecretToken::parse(value),
        SentCookie::None | SentCookie::Several => None,
    };
    let browser = browser.unwrap_or_else(|| SecretToken::generate(randomness));
    let [state, nonce, verifier] = [(); 3].map(|()| SecretToken::generate(randomness));
    let secrets = Secrets { state: state.reveal(), nonce: nonce.reveal(), pkce_verifier: verifier.reveal() };
    let wanted = if is_for_someone_else(&query) { Wanted::SomebodyElse } else { Wanted::Anybody };
    let url = portal.identity.authorization_url(&secrets, wanted).await;
    let url = url.map_err(|fault| fault.refusal(&return_to))?;

    let lasts_ms = i64::try_from(SIGN_IN_LASTS.as_millis()).unwrap_or(i64::MAX);
    let sign_in = SignIn {
        state: state.reveal().to_owned(),
        nonce: nonce.reveal().to_owned(),
        pkce_verifier: verifier.reveal().to_owned(),
        return_to,
        expires_at: UnixMillis(portal.clock.now().0.saturating_add(lasts_ms)),
    };
    let begun = portal.store.begin_sign_in(browser.hash_with(state.reveal()), sign_in).await;
    begun.map_err(|error| refused_by_store(&error))?;

    let unsendable = |what: &str| Refusal::internal(format!("{what} cannot be put into a header"));
    let location = HeaderValue::from_str(&url).map_err(|_| unsendable("the provider's address"))?;
    let cookie = SIGN_IN_COOKIE.set(browser.reveal(), Some(SIGN_IN_LASTS));
    let cookie = cookie.ok_or_else(|| unsendable("the sign-in's cookie"))?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, location), (header::SET_COOKIE, cookie)]).into_response())
}

/// A path of this portal, and not one of those that sign in, or the start.
fn return_to(query: &[(String, String)]) -> Result<LocalPath, Refusal> {
    let mut values = query.iter().filter(|(name, _)| name == "return_to").map(|(_, value)| value.as_str());
    let asked = match (values.next(), values.next()) {
        (Some(value), None) if !value.starts_with("/auth/") => LocalPath::parse(value),
        _ => None,
    };
    asked.map_or_else(start, Ok)
}

fn is_for_someone_else(query: &[(String, String)]) -> bool {
    query.iter().any(|(name, value)| (name.as_str(), value.as_str()) == SOMEONE_ELSE)
}

pub(crate) fn start() -> Result<LocalPath, Refusal> {
    LocalPath::parse(START).ok_or_else(|| Refusal::internal("the start is no path of this portal"))
}

/// Where a sign-in begins that ends at `return_to`.
pub(crate) fn sign_in_url(return_to: &LocalPath) -> String {
    let path: String = form_urlencoded::byte_serialize(return_to.as_str().as_bytes()).collect();
    format!("/auth/sign-in?return_to={path}")
}

/// Where somebody signs in with another account than the one that the provider knows this browser by.
pub(crate) fn someone_else_url(return_to: &LocalPath) -> String {
    let (name, value) = SOMEONE_ELSE;
    format!("{}&{name}={value}", sign_in_url(return_to))
}

/// What pages offer after a sign-in that came to nothing.
pub(crate) fn begin_again(return_to: &LocalPath) -> WayOn {
    WayOn { href: sign_in_url(return_to), label: "Sign in again" }
}

fn too_many(flood: Flood) -> Refusal {
    Refusal::too_many("Far more sign-ins are being begun than people begin.", flood.retry_after_s)
        .advice("Try again later. If it stays like this, tell the firm's administrator.")
        .logged("too many sign-ins were begun from this place, or from all together")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_comes_back_to_a_page_of_this_portal_and_never_into_a_circle() {
        let asked = |values: &[&str]| {
            let query: Vec<_> =
                values.iter().map(|value| ("return_to".to_owned(), (*value).to_owned())).collect();
            return_to(&query).unwrap().as_str().to_owned()
        };
        assert_eq!(asked(&["/clients/7?tab=letters"]), "/clients/7?tab=letters");
        for values in [
            &[][..],
            &["//evil.example"],
            &["https://evil.example"],
            &["/\\evil.example"],
            &["/auth/callback?code=x"],
            &["/auth/sign-in"],
            &["/clients/1", "/clients/2"],
        ] {
            assert_eq!(asked(values), "/clients", "{values:?}");
        }
    }
}
