//! The portal against identity providers that lie, hang, rotate their keys and violate the protocol. Files mirror what is
//! tested; `hostile_provider` is the provider, `harness` the portal, the browser and the log.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod backchannel_logout;
mod callback;
mod discovery;
mod harness;
mod hostile_provider;
mod id_token;
mod keys;
mod recheck;
mod requirements;
mod sign_in;
mod sign_out;
mod signing;
mod step_up;
mod token_endpoint;
mod userinfo;
