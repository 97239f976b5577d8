//! OpenID Connect as applications see it. One sign-in goes like this:
//!
//! 1. The application sends the browser to `/authorize` with its id, its own address to return to, and the SHA-256 of a
//!    secret that it keeps (PKCE). What is wrong about the application or its address, the person is told; everything
//!    else goes back to the application.
//! 2. Whoever is not signed in here signs in first (`signed_in`), and comes back to the same `/authorize`.
//! 3. Whoever has not yet allowed this application to learn this much is asked (`consent`), by a page that works once, in
//!    the session that it was shown in.
//! 4. The browser returns to the application with a code: one minute, one use, and of no use without the secret.
//! 5. The application exchanges the code at `/token` for an ID token, signed by the newest key that everybody has had time
//!    to fetch (`signing_keys`), and an access token that opens `/userinfo` for ten minutes and nothing else. A code that
//!    comes a second time takes the access token back.
//!
//! There are no refresh tokens, no implicit flow and no request objects: what is not needed cannot be misused.

mod authorization_request;
mod authorize;
mod client_authentication;
mod consent;
mod detour;
mod discovery;
mod id_token;
mod jwks;
pub(crate) mod limits;
mod logout;
mod parameters;
mod scope;
mod signing_keys;
mod token;
mod upkeep;
mod userinfo;

pub(crate) use authorization_request::login_hint;
pub use upkeep::protocol_upkeep;

use crate::Provider;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// Asked by programs, which have no cookie here, or (`/authorize`, `/logout`) by an application's own form, which is only
/// turned into the same request as a link.
pub(crate) const OPEN_TO_OTHER_SITES: &[&str] = &["/authorize", "/logout", "/token", "/userinfo"];

pub(crate) fn routes() -> Router<Arc<Provider>> {
    Router::new()
        .route("/.well-known/openid-configuration", get(discovery::show))
        .route("/jwks.json", get(jwks::show))
        .route("/authorize", get(authorize::show).post(authorize::as_link))
        .route("/consent", post(consent::answer))
        .route("/token", post(token::exchange))
        .route("/userinfo", get(userinfo::show).post(userinfo::show))
        .route("/logout", get(logout::show).post(logout::as_link))
        .route("/logout/confirm", post(logout::confirm))
}
