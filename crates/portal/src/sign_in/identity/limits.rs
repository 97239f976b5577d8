//! Limits on requests to the identity provider and on its tokens.

use std::time::Duration;

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time-out of a whole request including its reply. A user is waiting for it.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
/// Discovery documents and key sets take a few kilobytes.
pub(super) const MAX_REPLY_BYTES: usize = 256 * 1024;

/// After this time, endpoints and keys are fetched again, so that a withdrawn key is not trusted indefinitely.
pub(super) const DISCOVERY_MAX_AGE: Duration = Duration::from_secs(60 * 60);
pub(super) const KEYS_MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// How long a failed discovery is cached, so that requests during an outage of the provider do not wait one after another.
pub(super) const DISCOVERY_RETRY_AFTER: Duration = Duration::from_secs(2);
/// Minimum interval between fetches that unknown keys trigger. Anyone can send a logout token with an unknown key, so these
/// have an interval of their own, and cannot use up the one of sign-ins.
pub(super) const KEYS_REFETCH_INTERVAL: Duration = Duration::from_secs(10);

/// Tolerated difference between the provider's clock and ours.
pub(super) const CLOCK_SKEW_S: i64 = 60;
/// An ID token is issued for the code that was just sent, so it is never older than a sign-in may take.
pub(super) const ID_TOKEN_MAX_AGE_S: i64 = 10 * 60;
/// A logout token is sent when it is issued.
pub(super) const LOGOUT_TOKEN_MAX_AGE_S: i64 = 10 * 60;
/// Longer ones are not stored. `id_token_hint` has to fit in a URL.
pub(super) const MAX_STORED_ID_TOKEN_BYTES: usize = 6 * 1024;
/// No provider names its sessions with more.
pub(super) const MAX_SID_CHARS: usize = 500;
/// OpenID Connect Core, section 2.
pub(super) const MAX_SUBJECT_CHARS: usize = 255;
