//! One file per command. Each opens what it needs, does one thing, prints the result, and exits.

mod account;
mod client;
mod config;
mod generate;
mod invoice;
mod key;
mod migrate;
mod model;
mod model_list;
mod receipt;
mod secrets;
mod usage;
mod user;
mod verify;
mod verify_logs;
mod webhook;

pub use account::change_account;
pub use key::create_key;

use crate::cli::{Cli, Command, GlobalArgs};
use crate::config::{Config, Loaded};
use crate::data_dir::DataDir;
use crate::encryption_keys::KeySource;
use crate::serve;
use anyhow::Context;
use chancery_store::Store;
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global_args = cli.global_args;
    match cli.command {
        Command::Serve(options) => serve::run(&global_args, &options)?,
        Command::Account(command) => run_async(account::run(&global_args, command))?,
        Command::Key(command) => run_async(key::run(&global_args, command))?,
        Command::Client(command) => run_async(client::run(&global_args, command))?,
        Command::User(command) => run_async(user::run(&global_args, command))?,
        Command::Usage(options) => run_async(usage::run(&global_args, options))?,
        Command::Invoice(command) => run_async(invoice::run(&global_args, command))?,
        Command::Webhook(command) => run_async(webhook::run(&global_args, command))?,
        Command::Secrets(command) => run_async(secrets::run(&global_args, &command))?,
        Command::Model(command) => model::run(&global_args, command)?,
        Command::Receipt(command) => receipt::run(&global_args, &command)?,
        Command::Generate(options) => run_async(generate::run(&global_args, options))?,
        Command::Verify(options) => return run_async(verify::run(&global_args, &options)),
        Command::Migrate(options) => return run_async(migrate::run(&options)),
        Command::Config(command) => config::run(&global_args, &command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Commands run one task at a time, so one thread is enough.
fn run_async<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the async runtime")?.block_on(command)
}

/// What a command does if there is no database yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfMissing {
    /// The first account or key may be created before the first start.
    Create,
    /// There is nothing to read or change, so the data directory is probably the wrong one.
    Fail,
}

/// Opens the configuration and the store, for commands that work on data.
async fn open(global_args: &GlobalArgs, if_missing: IfMissing) -> anyhow::Result<(Config, Store)> {
    let config = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?.config;
    let keys = KeySource::from_config(&config);
    let store = match if_missing {
        IfMissing::Create => {
            let store = DataDir::open(&config.data)?.open_database(&config.database_url).await?;
            keys.create_for_new_database(&store.encryption).await?;
            store
        }
        IfMissing::Fail => Store::open_existing(&config.database_url).await?,
    };
    // Most commands need no secret, and work without the key.
    store.encryption.use_keys(Arc::new(keys));
    Ok((config, store))
}
