//! What the built-in identity provider stores.

pub(crate) mod accounts;
pub(crate) mod backchannel_logouts;
pub(crate) mod ceremonies;
pub(crate) mod error;
pub(crate) mod factor_reset;
pub(crate) mod factor_types;
pub(crate) mod factors;
pub(crate) mod grants;
pub(crate) mod known_devices;
pub(crate) mod proofs;
pub(crate) mod sessions;
pub(crate) mod signing_keys;
pub(crate) mod types;
