//! The portal's side of OpenID Connect; `provider` has the protocol. It decides nothing about people: who may sign up, and what
//! a session is, others say.

mod discovery;
pub(crate) mod fault;
mod http;
mod id_token;
mod limits;
pub(crate) mod provider;
mod userinfo;
