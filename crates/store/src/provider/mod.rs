//! What the built-in identity provider stores.

pub(crate) mod accounts;
pub(crate) mod error;
pub(crate) mod grants;
pub(crate) mod proofs;
pub(crate) mod sessions;
pub(crate) mod signing_keys;
pub(crate) mod types;
