//! What all HTTP clients of Chancery share: TLS, no redirects, size limits on bodies and event streams, one-line
//! errors. URLs and timeouts belong to the callers.

mod body;
mod events;

pub use body::{BodyError, read_body};
pub use events::{EventError, EventReader};

use std::error::Error;

/// Does not follow redirects: a response must not decide where a key or a prompt goes next.
pub fn client_builder() -> reqwest::ClientBuilder {
    // Fails if a provider is already installed, which is then this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none())
}

/// Formats a failed request and its causes without the URL, which may contain a secret.
pub fn describe(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}

/// Formats an error and its causes on one line.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
