//! The provider's pages on a real database, as people and their browsers meet them.

mod forgotten_password;
mod served;
mod sign_in;
mod sign_up;
mod throttling;
