//! What every HTTP client of Chancery shares: TLS, no redirects, bodies and event streams within bounds, errors on one line.
//! It knows no server, no path and no time-out; those belong to whoever asks.

mod body;
mod events;

pub use body::{BodyError, read_body};
pub use events::{EventError, EventReader};

use std::error::Error;

/// Follows no redirect: a reply must not decide where a key or a prompt goes next.
pub fn client_builder() -> reqwest::ClientBuilder {
    // Fails where a provider is installed already, which is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none())
}

/// A failed request and its causes, without the address, which may carry a secret.
pub fn describe(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}

/// An error and its causes on one line.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
