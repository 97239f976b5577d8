//! One file per command. Each opens what it needs, does one thing, prints it, and ends.

mod account;
mod client;
mod config;
mod generate;
mod invoice;
mod key;
mod migrate;
mod model;
mod usage;
mod user;
mod verify;

pub use account::change_account;
pub use client::import_clients;
pub use key::create_key;

use crate::cli::{Cli, Command, Place};
use crate::config::{Config, Loaded};
use crate::data_folder::DataFolder;
use crate::serve;
use anyhow::Context;
use chancery_store::Store;
use std::process::ExitCode;

pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let place = cli.place;
    match cli.command {
        Command::Serve(options) => serve::run(&place, &options)?,
        Command::Account(command) => quick(account::run(&place, command))?,
        Command::Key(command) => quick(key::run(&place, command))?,
        Command::Client(command) => quick(client::run(&place, command))?,
        Command::User(command) => quick(user::run(&place, command))?,
        Command::Usage(options) => quick(usage::run(&place, options))?,
        Command::Invoice(command) => quick(invoice::run(&place, command))?,
        Command::Model(command) => model::run(&place, command)?,
        Command::Generate(options) => quick(generate::run(options))?,
        Command::Verify(options) => return quick(verify::run(&place, &options)),
        Command::Migrate(options) => return quick(migrate::run(&options)),
        Command::Config(command) => config::run(&place, &command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Commands wait for one thing at a time; one thread is enough for them.
fn quick<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("the asynchronous runtime cannot be started")?.block_on(command)
}

/// What a command does where there is no database yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// The first account or key may be made before the first start.
    Make,
    /// Nothing can be looked up or changed there, so the folder is probably the wrong one.
    Refuse,
}

/// The configuration and the store, for commands that work on data.
async fn open(place: &Place, missing: Missing) -> anyhow::Result<(Config, Store)> {
    let config = Loaded::read(place.config.as_deref(), place.data.as_deref())?.config;
    let store = match missing {
        Missing::Make => {
            DataFolder::open(&config.data)?;
            Store::open(&config.database_url).await?
        }
        Missing::Refuse => Store::open_existing(&config.database_url).await?,
    };
    Ok((config, store))
}
