//! The provider's protocol on a real database, as applications and browsers meet it.

mod authorize;
mod consent;
mod discovery;
mod keys;
mod logout;
mod openidconnect_client;
mod served;
mod token;
mod userinfo;
