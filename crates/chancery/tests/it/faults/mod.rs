//! Fault injection: the real binary, with the real model, real databases and a real Redis, is killed, disconnected, raced,
//! starved of disk space and given the wrong time. Afterwards, what its callers received is compared with the ledger.
//!
//! Every case consists of rounds, and every round makes all of its choices from one seed. `make test` runs one round
//! of most cases; `make torture` runs rounds of all for as long as you choose. `rounds` explains how to repeat one.

pub mod admission_windows;
pub mod client_requests;
pub mod clients;
mod clock_jumps;
mod disk_full;
pub mod duplicates;
pub mod hang_ups;
mod journal;
mod kills;
pub mod ledger;
mod outages;
mod outbox;
pub mod proxy;
pub mod races;
pub mod retries;
pub mod rounds;
mod sigterm;
mod small_disk;
