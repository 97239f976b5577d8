//! Reads the fields of a request body, each checked for its type and bounds.

pub(crate) mod fields;
pub(crate) mod sampling;
