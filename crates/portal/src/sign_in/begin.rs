//! `GET /auth/sign-in?return_to=…`: begins a sign-in and sends the browser to the identity provider. With `as=someone-else` the
//! provider is told to ask who it is (`prompt=login`), though it knows the browser: without that, somebody who is signed
//! in there with the wrong account would come back with it every time.
//!
//! The cookie `sign_in` ties what comes back to the browser that began. It is the same for all tabs of a browser; what each
//! tab began is stored under the cookie's token and that tab's `state` together, so that each can be finished once, in this
//! browser alone.

use crate::error::PageError;
use crate::sign_in::identity::provider::{Secrets, Wanted};
use crate::sign_in::links::{SOMEONE_ELSE, start};
use crate::sign_in::throttle::Flood;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{LocalPath, SecretToken, UnixMillis};
use chancery_store::SignIn;
use chancery_web::{Cookie, ErrorPage, SentCookie, sent_cookie};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SIGN_IN_COOKIE: Cookie = Cookie { name: "sign_in", path: "/auth" };

/// How long a person may take at the identity provider.
const SIGN_IN_LASTS: Duration = Duration::from_secs(10 * 60);

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
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
    let url = url.map_err(|fault| fault.error_page(&return_to))?;

    let lasts_ms = i64::try_from(SIGN_IN_LASTS.as_millis()).unwrap_or(i64::MAX);
    let sign_in = SignIn {
        state: state.reveal().to_owned(),
        nonce: nonce.reveal().to_owned(),
        pkce_verifier: verifier.reveal().to_owned(),
        return_to,
        expires_at: UnixMillis(portal.clock.now().0.saturating_add(lasts_ms)),
    };
    portal.store.sign_ins.begin_sign_in(browser.hash_with(state.reveal()), sign_in).await?;

    let unsendable = |what: &str| ErrorPage::internal(format!("{what} cannot be put into a header"));
    let location = HeaderValue::from_str(&url).map_err(|_| unsendable("the provider's address"))?;
    let cookie = SIGN_IN_COOKIE.set(browser.reveal(), Some(SIGN_IN_LASTS));
    let cookie = cookie.ok_or_else(|| unsendable("the sign-in's cookie"))?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, location), (header::SET_COOKIE, cookie)]).into_response())
}

/// A path of this portal, and not one of those that sign in, or the start.
fn return_to(query: &[(String, String)]) -> Result<LocalPath, ErrorPage> {
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

fn too_many(flood: Flood) -> ErrorPage {
    ErrorPage::too_many("Far more sign-ins are being begun than people begin.", flood.retry_after_s)
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
