//! Accepts connections and serves a router on them. It knows nothing of what is served, but for whether a reply's text is still
//! being generated.

mod connection;
mod connection_threads;
mod connections;
mod listener;
mod reply_io;
mod reply_watch;
mod self_wakes;

pub use connection_threads::{ConnectionThreads, DESCRIPTORS_PER_THREAD, MAX_THREADS};
pub use listener::{Listener, ShutdownTokens};

/// HTTP/2 by its name in the TLS handshake (ALPN).
pub const HTTP_2: &[u8] = b"h2";
/// Only an authority that validates our host names chooses it. It sends no request.
pub const ACME_CHALLENGE: &[u8] = b"acme-tls/1";
