//! Attempt counts for rate limits. The bounds are in `chancery_domain`.

pub(crate) mod counts;
