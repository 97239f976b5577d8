//! Secrets at rest: encryption of the columns that contain secrets, rotation of the keys, and the secrets that all nodes
//! share.

pub(crate) mod cipher;
pub(crate) mod column;
pub(crate) mod encryption;
pub(crate) mod error;
pub(crate) mod key_id;
pub(crate) mod keyring;
pub(crate) mod rotation;
pub(crate) mod shared;
