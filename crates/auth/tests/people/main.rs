//! The provider's pages on a real database, as people and their browsers meet them.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod forgotten_password;
mod served;
mod sign_in;
mod sign_up;
mod throttling;
