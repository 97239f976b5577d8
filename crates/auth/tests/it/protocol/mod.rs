//! The provider's protocol on a real database, as clients and browsers see it.

mod authorize;
mod backchannel_logout;
mod consent;
mod discovery;
mod harness;
mod keys;
mod logout;
mod second_factor;
mod token;
mod userinfo;
