//! `chancery invoice issue`: the invoice of one account's month. Asking again for one that is there already changes nothing and
//! gives its number.

use crate::cli::IssueInvoice as Options;
use crate::operator::Operator;
use crate::output::{print_json, say};
use chancery_domain::{InvoiceNumber, InvoiceTerms};
use chancery_policy::{ManageInvoices, TheFirm};
use chancery_store::{AdminStore, IssueOrder, Issued};

#[derive(serde::Serialize)]
struct Answer {
    number: InvoiceNumber,
    /// Whether it was issued by this command.
    is_new: bool,
}

pub async fn run(store: &AdminStore, terms: InvoiceTerms, options: &Options) -> anyhow::Result<()> {
    let Options { account, month, json } = options;
    let account_id = store.account_lookup.account_named(account).await?.id;
    let permit = Operator::new()?.ask::<ManageInvoices>(store, TheFirm).await?;
    let order = IssueOrder { account: account_id, month: *month, terms };
    let (number, is_new) =
        match store.invoices.issue_invoice(permit, &order, &chancery_invoicing::pdf).await? {
            Issued::New(number) => (number, true),
            Issued::Already(number) => (number, false),
        };
    if *json {
        return print_json(&Answer { number, is_new });
    }
    if is_new {
        say!("invoice {number} issued: {account}, {month}");
        say!("its PDF: chancery invoice show {number} --pdf {number}.pdf");
    } else {
        say!("invoice {number} bills {month} of {account} already; nothing was changed");
    }
    Ok(())
}
