//! `chancery client`: imports, assigns, lists and exports clients. The policy decides every action, with the operator as
//! principal, and the audit log records it.

mod assign;
mod export;
mod import;
mod import_lock;
mod list;

use super::{IfMissing, open};
use crate::cli::{Client as Command, GlobalArgs};

pub async fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    let (config, store) = open(global_args, IfMissing::Fail).await?;
    let admin = store.admin();
    match command {
        Command::Import(options) => import::run(&admin, &config, &options).await?,
        Command::Assign { id, selector } => assign::run(&admin, id, &selector).await?,
        Command::List(options) => list::run(&admin, &options).await?,
        Command::Export(options) => export::run(&admin, config.billing.currency, &options).await?,
    }
    store.close().await;
    Ok(())
}
