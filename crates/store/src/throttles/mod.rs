//! Counts of what may be tried only so often. The bounds are in `chancery_domain`.

pub(crate) mod counts;
