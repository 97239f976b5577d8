//! The provider's pages on a real database, as browsers see them.

mod forgotten_password;
mod harness;
mod passkeys;
mod second_factors;
mod security;
mod sign_in;
mod sign_up;
mod software_authenticator;
mod throttling;
