//! The OpenID Connect protocol. A sign-in works like this:
//!
//! 1. The client sends the browser to `/authorize` with its id, its redirect URI, and the SHA-256 of a secret that it keeps
//!    (PKCE). If the client or its redirect URI is invalid, the user sees the error; all other errors go back to the client.
//! 2. A user who is not signed in here signs in first (`signed_in`), and returns to the same `/authorize`.
//! 3. A user who has not yet allowed this client this scope is asked (`consent`), on a page that works once, in the session
//!    that it was shown in.
//! 4. The browser returns to the client with a code that is valid for one minute and one use, and useless without the secret.
//! 5. The client exchanges the code at `/token` for an ID token, signed by the newest key that every client has had time to
//!    fetch (`signing_keys`), and an access token that is valid for ten minutes and only for `/userinfo`. If a code is used
//!    twice, its access token is revoked.
//!
//! When the session ends, the clients that were signed in to in it are told (`backchannel_logout`).
//!
//! There are no refresh tokens, no implicit flow and no request objects: what does not exist cannot be misused.

mod authorization_request;
mod authorize;
mod backchannel_logout;
mod client_authentication;
mod consent;
mod discovery;
mod id_token;
mod jwks;
pub(crate) mod limits;
mod logout;
mod maintenance;
mod parameters;
mod scope;
mod sign_in_detour;
mod signing_keys;
mod token;
mod userinfo;

pub(crate) use authorization_request::login_hint;
pub use backchannel_logout::BackchannelLogoutWorker;
pub use maintenance::run_protocol_maintenance;

use crate::Provider;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// Called by programs, which have no cookie here, or (`/authorize`, `/logout`) by a client's own form, which is only
/// redirected to the same request as a GET.
pub(crate) const CROSS_ORIGIN_PATHS: &[&str] = &["/authorize", "/logout", "/token", "/userinfo"];

pub(crate) fn routes() -> Router<Arc<Provider>> {
    Router::new()
        .route("/.well-known/openid-configuration", get(discovery::show))
        .route("/jwks.json", get(jwks::show))
        .route("/authorize", get(authorize::show).post(authorize::redirect_post_to_get_handler))
        .route("/consent", post(consent::submit))
        .route("/token", post(token::exchange))
        .route("/userinfo", get(userinfo::show).post(userinfo::show))
        .route("/logout", get(logout::show).post(logout::redirect_post_to_get_handler))
        .route("/logout/confirm", post(logout::confirm))
}
