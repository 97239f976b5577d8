//! All limits of the protocol: lifetimes of what is issued and sizes of what is accepted.

use chancery_domain::Throttle;
use std::time::Duration;

/// From the redirect until the client exchanges the code.
pub(crate) const AUTHORIZATION_CODE_TTL: Duration = Duration::from_secs(60);

/// Enough for one request to `/userinfo` after sign-in.
pub(crate) const ACCESS_TOKEN_TTL: Duration = Duration::from_secs(10 * 60);

pub(crate) const ID_TOKEN_TTL: Duration = Duration::from_secs(60 * 60);

/// How long a consent page stays valid.
pub(crate) const CONSENT_PAGE_TTL: Duration = Duration::from_secs(60 * 60);

/// Time allowed for signing in and returning, including a mailbox proof. The proof of the detour is remembered equally
/// long, so that it works only once.
pub(crate) const SIGN_IN_REDIRECT: Duration = Throttle::SIGN_IN_REDIRECT.window;

/// How long a key signs before it is replaced.
pub(crate) const KEY_SIGNING_PERIOD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long the next key is published before it signs, so that every cache has it by then.
pub(crate) const KEY_PUBLISH_LEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// Added to the lifetime of the last ID token before its key is removed, to allow for clock skew.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// How long clients may cache our keys and metadata.
pub(crate) const JWKS_MAX_AGE: Duration = Duration::from_secs(15 * 60);
pub(crate) const DISCOVERY_MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// Applies to form bodies and queries.
pub(crate) const MAX_FORM_BYTES: usize = 16 * 1024;

/// A logout token is sent at once, and signed again for every attempt.
pub(crate) const LOGOUT_TOKEN_TTL: Duration = Duration::from_secs(2 * 60);
/// How long an application may take to answer a logout token.
pub(crate) const BACKCHANNEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Logout tokens that one process sends at the same time.
pub(crate) const BACKCHANNEL_BATCH: u32 = 16;
/// How long other processes leave a claimed logout token to the one that sends it.
pub(crate) const BACKCHANNEL_CLAIM_TIME: Duration = Duration::from_secs(60);
/// The wait after the first failed attempt. It is multiplied after each further one.
pub(crate) const BACKCHANNEL_FIRST_RETRY: Duration = Duration::from_secs(2);
pub(crate) const BACKCHANNEL_RETRY_FACTOR: u32 = 3;
pub(crate) const BACKCHANNEL_MAX_RETRY: Duration = Duration::from_secs(10 * 60);
/// The last attempt is made this long after the first.
pub(crate) const BACKCHANNEL_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// How soon sessions are noticed that another process has ended without sending the token itself.
pub(crate) const BACKCHANNEL_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Rows of each kind deleted per step. Steps repeat until nothing expired is left.
pub(crate) const MAINTENANCE_BATCH_ROWS: u32 = 1_000;

const _: () = assert!(AUTHORIZATION_CODE_TTL.as_secs() <= ACCESS_TOKEN_TTL.as_secs());
const _: () = assert!(BACKCHANNEL_TIMEOUT.as_secs() < BACKCHANNEL_CLAIM_TIME.as_secs());
const _: () = assert!(BACKCHANNEL_CLAIM_TIME.as_secs() <= LOGOUT_TOKEN_TTL.as_secs());
const _: () = assert!(JWKS_MAX_AGE.as_secs() < KEY_PUBLISH_LEAD.as_secs());
const _: () = assert!(KEY_PUBLISH_LEAD.as_secs() < KEY_SIGNING_PERIOD.as_secs());
