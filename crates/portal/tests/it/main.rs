//! The portal against identity providers that lie, hang, rotate their keys and violate the protocol. Files mirror what is
//! tested; `hostile_provider` is the provider, `harness` the portal, the browser and the log.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod callback;
mod discovery;
mod harness;
mod hostile_provider;
mod id_token;
mod keys;
mod sign_in;
mod signing;
mod token_endpoint;
mod userinfo;
