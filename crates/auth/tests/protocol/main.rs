//! The provider's protocol on a real database, as applications and browsers meet it.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod authorize;
mod consent;
mod discovery;
mod keys;
mod logout;
mod openidconnect_client;
mod served;
mod token;
mod userinfo;
