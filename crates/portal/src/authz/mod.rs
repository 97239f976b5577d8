//! Who may do what. Only `permits` lets anything be read or changed; `capabilities` says what a page may offer.

pub(crate) mod capabilities;
pub(crate) mod permits;
