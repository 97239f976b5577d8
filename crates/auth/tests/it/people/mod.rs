//! The provider's pages on a real database, as browsers see them.

mod forgotten_password;
mod harness;
mod sign_in;
mod sign_up;
mod throttling;
