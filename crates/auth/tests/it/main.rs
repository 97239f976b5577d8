//! The provider on a real database: its pages as people meet them, and its protocol as applications do. One program, because
//! every program more is linked with all that the crate depends on.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod people;
mod protocol;
