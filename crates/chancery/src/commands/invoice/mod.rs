//! `chancery invoice`: issues, lists, shows, credits and marks invoices as paid. The policy decides every action, with the
//! operator as principal, and the audit log records it.

mod credit;
mod issue;
mod list;
mod paid;
mod show;

use super::{IfMissing, open};
use crate::cli::{GlobalArgs, Invoice as Command};

pub async fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    let (config, store) = open(global_args, IfMissing::Fail).await?;
    let admin = store.admin();
    match command {
        Command::Issue(options) => {
            let terms = (config.invoice_terms(), config.billing.pdf_fonts()?);
            issue::run(&admin, terms, &options).await?;
        }
        Command::List(options) => list::run(&admin, &options).await?,
        Command::Show(options) => show::run(&admin, &options).await?,
        Command::Paid { number, json } => paid::run(&admin, number, json).await?,
        Command::Credit(options) => {
            let terms = (config.invoice_terms(), config.billing.pdf_fonts()?);
            credit::run(&admin, terms, &options).await?;
        }
    }
    store.close().await;
    Ok(())
}
