//! Faults on purpose: the real binary with the real model on real databases and a real Redis is killed, cut off, raced,
//! starved of disk and misled about the time, and afterwards what its callers got is held against the ledger.
//!
//! Every case is made of rounds, and every round draws all its choices from one seed. `make test` runs a few rounds of
//! each; `make torture` runs the same ones for as long as it is told to. How to repeat a round is in `rounds`.

pub mod asks;
pub mod clients;
mod clock_jumps;
mod disk_full;
mod duplicates;
pub mod hang_ups;
mod kills;
pub mod ledger;
mod outages;
mod proxy;
pub mod races;
pub mod repeats;
pub mod rounds;
mod sigterm;
mod small_disk;
pub mod windows;
