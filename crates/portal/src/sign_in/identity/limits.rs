//! The bounds of everything that the portal asks of its identity provider, and of what it believes.

use std::time::Duration;

/// How long a connection to the provider may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one request may take altogether, its reply included; a person waits for it.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
/// Discovery documents and key sets have a few kilobytes.
pub(super) const MAX_REPLY_BYTES: usize = 256 * 1024;

/// After this time the provider is asked anew where its endpoints are and which keys it signs with, so that a key which it
/// took back is not believed for ever.
pub(super) const DISCOVERY_MAX_AGE: Duration = Duration::from_secs(60 * 60);
pub(super) const KEYS_MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// For so long everybody gets the answer that the last attempt at discovery got, so that many who wait for a provider that
/// is down do not wait one after the other.
pub(super) const DISCOVERY_RETRY_AFTER: Duration = Duration::from_secs(2);
/// Unknown keys make the portal ask for the provider's keys at most this often.
pub(super) const KEYS_REFETCH_INTERVAL: Duration = Duration::from_secs(10);

/// How far the provider's clock may be from ours.
pub(super) const CLOCK_SKEW_S: i64 = 60;
/// An ID token is made for the code that was just sent, so it is never older than a sign-in may take.
pub(super) const ID_TOKEN_MAX_AGE_S: i64 = 10 * 60;
/// OpenID Connect Core, section 2.
pub(super) const MAX_SUBJECT_CHARS: usize = 255;
