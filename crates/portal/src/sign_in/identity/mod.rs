//! The OpenID Connect client; `provider` documents the protocol. It makes no decisions about people: who may sign up, and what a
//! session is, is decided elsewhere.

#[cfg(test)]
mod attacks;
pub(crate) mod claims;
mod discovery;
pub(crate) mod error;
#[cfg(test)]
mod fuzz;
mod http;
mod id_token;
mod jwk;
mod limits;
mod logout_token;
pub(crate) mod provider;
mod signed_token;
mod token_endpoint;
mod userinfo;
