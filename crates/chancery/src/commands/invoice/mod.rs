//! `chancery invoice`: invoices and credit notes, issued, listed, read, noted as paid and credited. It asks the policy like
//! everybody else, as the operator, and is on record.

mod credit;
mod issue;
mod list;
mod paid;
mod show;

use super::{Missing, open};
use crate::cli::{Invoice as Command, Place};

pub async fn run(place: &Place, command: Command) -> anyhow::Result<()> {
    let (config, store) = open(place, Missing::Refuse).await?;
    let admin = store.admin();
    match command {
        Command::Issue(options) => issue::run(&admin, config.invoice_terms(), &options).await?,
        Command::List(options) => list::run(&admin, &options).await?,
        Command::Show(options) => show::run(&admin, &options).await?,
        Command::Paid { number, json } => paid::run(&admin, number, json).await?,
        Command::Credit(options) => credit::run(&admin, config.invoice_terms(), &options).await?,
    }
    store.close().await;
    Ok(())
}
