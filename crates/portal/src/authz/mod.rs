//! Who may do what: each request is decided for this person and this record.

pub(crate) mod authority;
