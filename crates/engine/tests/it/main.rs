//! The upstream engine against servers that keep to nothing: each promise of `upstream/run.rs` and `upstream/pool.rs`.

mod counting;
mod faults;
mod pools;
mod server;
mod set_up;
