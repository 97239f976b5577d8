//! Authorization. Only `permits` grants access; `capabilities` decides which controls a page shows.

pub(crate) mod capabilities;
pub(crate) mod permits;
