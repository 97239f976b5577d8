//! Three equal nodes with one PostgreSQL and one Redis, in front of generation nodes that are separate real servers. They
//! share limits, sessions and keys. Nothing is lost or duplicated when a node, a generation server, Redis or PostgreSQL
//! fails under load.
//!
//! Run only these tests, with their counts: `make nodes`. The results are in docs/scaling.md.

mod balancer;
mod cluster;
mod killed_generation;
mod killed_node;
mod limits;
mod paused_node;
mod postgres_server;
mod races;
mod restarted_postgres;
mod restarted_redis;
mod revocations;
mod rolling_restart;
mod round_robin_proxy;
mod sessions;
