//! Tests of the real binary with the real model over real TCP. Folders and files mirror the URLs and commands they test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, in what it shares with others too"
)]

mod accounts_page;
mod activity;
mod billing;
mod browser;
mod client_records;
mod clients_command;
mod commands;
mod config;
mod demo;
mod deploy_configs;
mod docs;
mod docs_shell_blocks;
mod drafting;
mod event_stream;
mod fake_clock;
mod faults;
mod identity_clients;
mod identity_providers;
mod invoices_command;
mod limits;
mod migrate;
mod model_files;
mod model_reload;
mod multiple_models;
mod nodes;
mod office;
mod openai_clients;
mod openapi;
mod ops;
mod resource_limits;
mod scaling_guide;
mod second_node;
mod secrets;
mod server;
mod shutdown;
mod sign_in;
mod smtp;
mod soak;
mod startup;
mod tamper_evidence;
mod test_backends;
mod tls;
mod tour;
mod unreachable_dependencies;
mod upstream;
mod users;
mod v1;
mod webhooks;
