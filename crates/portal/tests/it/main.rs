//! The portal against identity providers that lie, hang, change their keys and break their own rules. Folders and files
//! mirror what is tested; `hostile_provider` is the provider, `scene` the portal, the browser and the log.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod callback;
mod discovery;
mod hostile_provider;
mod id_token;
mod keys;
mod scene;
mod sign_in;
mod signing;
mod token_endpoint;
mod userinfo;
