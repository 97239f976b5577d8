//! The provider on a real database: its pages as users see them, and its protocol as clients see it. One test binary,
//! because each further one links all dependencies again.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod people;
mod protocol;
