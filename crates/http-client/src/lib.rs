//! What all HTTP clients of Chancery share: TLS, trust in our own listeners, no redirects, size limits on bodies and event
//! streams, one-line errors; and the connections to upstream servers. URLs and timeouts belong to the callers.

mod body;
mod connections;
mod events;
#[cfg(test)]
mod fuzz;
mod own_certificates;

pub use body::{BodyError, read_body};
pub use connections::{Connections, Connector, ReadError, SendError, ServerResponse};
pub use events::{EventError, EventReader};
pub use own_certificates::OwnCertificates;

use std::error::Error;
use std::sync::Arc;

/// Does not follow redirects: a response must not decide where a key or a prompt goes next.
pub fn client_builder() -> reqwest::ClientBuilder {
    // Fails if a provider is already installed, which is then this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none())
}

/// The same for calls to our own listeners, whose certificates need not be signed by an authority.
pub fn client_builder_trusting(own_certificates: &OwnCertificates) -> reqwest::ClientBuilder {
    let builder = client_builder();
    match own_certificates.client_config(Arc::new(rustls::crypto::ring::default_provider())) {
        Ok(config) => builder.tls_backend_preconfigured(config),
        // Without certificates of authorities, this builder fails too, and says why.
        Err(_) => builder,
    }
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
