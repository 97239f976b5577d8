//! `chancery client`: the clients of the firm, brought in, given to somebody, listed and taken along. It asks the policy like
//! everybody else, as the operator, and is on record.

mod assign;
mod export;
mod import;
mod import_alone;
mod list;

pub use import::write as import_clients;

use super::{Missing, open};
use crate::cli::{Client as Command, Place};

pub async fn run(place: &Place, command: Command) -> anyhow::Result<()> {
    let (config, store) = open(place, Missing::Refuse).await?;
    let admin = store.admin();
    match command {
        Command::Import(options) => import::run(&admin, &config.database_url, &options).await?,
        Command::Assign { id, who } => assign::run(&admin, id, &who).await?,
        Command::List(options) => list::run(&admin, &options).await?,
        Command::Export(options) => export::run(&admin, &options).await?,
    }
    store.close().await;
    Ok(())
}
