//! What the programs here share with the tests that run them for a short while.

pub mod soak;
