//! Three equal nodes over one PostgreSQL and one Redis, in front of generation nodes that are real servers of their own:
//! one limit, one set of sessions and keys for all of them, and nothing lost or doubled when a node, a generation server,
//! Redis or PostgreSQL goes away under load.
//!
//! To run these alone and see what they counted: `make nodes`. What that gave is in docs/scaling.md.

mod balancer;
mod cluster;
mod killed_generation;
mod killed_node;
mod limits;
mod postgres_server;
mod restarted_postgres;
mod restarted_redis;
mod revocations;
mod rolling_restart;
mod sessions;
mod turns;
