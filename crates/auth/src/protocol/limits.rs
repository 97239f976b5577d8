//! Every bound of the protocol: lives of what is given out, and sizes of what is taken in.

use chancery_domain::Throttle;
use std::time::Duration;

/// From the redirect until the application has exchanged it.
pub(crate) const CODE_LIFE: Duration = Duration::from_secs(60);

/// For one look at `/userinfo` after the sign-in.
pub(crate) const ACCESS_TOKEN_LIFE: Duration = Duration::from_secs(10 * 60);

pub(crate) const ID_TOKEN_LIFE: Duration = Duration::from_secs(60 * 60);

/// How long a consent page may stand open.
pub(crate) const CONSENT_PAGE_LIFE: Duration = Duration::from_secs(60 * 60);

/// How long the way to a sign-in and back may take, mailbox proof and all.
/// A mark is known for as long, so that it is of use once.
pub(crate) const SIGN_IN_DETOUR: Duration = Throttle::SIGN_IN_DETOUR.window;

/// How long a key signs before the next one takes over.
pub(crate) const KEY_SIGNS_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long the next key is known before it signs, so that whoever keeps our keys has it by then.
pub(crate) const KEY_KNOWN_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// Added to the last ID token's life before its key goes, for clocks that are not quite ours.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// How long others may keep our keys and our description.
pub(crate) const JWKS_KEPT_FOR: Duration = Duration::from_secs(15 * 60);
pub(crate) const DISCOVERY_KEPT_FOR: Duration = Duration::from_secs(60 * 60);

/// Of a form's body, and of a query.
pub(crate) const MAX_FORM_BYTES: usize = 16 * 1024;

/// Rows that upkeep removes of each kind in one step; it takes as many steps as there are.
pub(crate) const FORGET_AT_ONCE: u32 = 1_000;

const _: () = assert!(CODE_LIFE.as_secs() <= ACCESS_TOKEN_LIFE.as_secs());
const _: () = assert!(JWKS_KEPT_FOR.as_secs() < KEY_KNOWN_AHEAD.as_secs());
const _: () = assert!(KEY_KNOWN_AHEAD.as_secs() < KEY_SIGNS_FOR.as_secs());
