//! `chancery invoice issue`: issues the invoice for one account and month. If it already exists, prints its number and changes
//! nothing.

use crate::cli::IssueInvoice as Options;
use crate::operator::Operator;
use crate::output::{outln, print_json};
use chancery_domain::{InvoiceNumber, InvoiceTerms};
use chancery_invoicing::{PdfFonts, printable_pdf};
use chancery_policy::{FirmResource, ManageInvoices};
use chancery_store::{AdminStore, IssueOutcome, IssueRequest, RenderInvoice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(serde::Serialize)]
struct IssueOutput {
    number: InvoiceNumber,
    /// Whether this command issued it.
    is_new: bool,
}

pub async fn run(
    store: &AdminStore,
    (terms, fonts): (InvoiceTerms, PdfFonts),
    options: &Options,
) -> anyhow::Result<()> {
    let Options { account, month, json } = options;
    let account_id = store.account_lookup.account_by_name(account).await?.id;
    let permit = Operator::new()?.authorize::<ManageInvoices>(store, FirmResource).await?;
    let request = IssueRequest { account: account_id, month: *month, terms };
    let has_address = Arc::new(AtomicBool::new(true));
    let found = Arc::clone(&has_address);
    let render: RenderInvoice = Box::new(move |invoice| {
        found.store(!invoice.buyer.address.as_str().is_empty(), Ordering::Relaxed);
        printable_pdf(invoice, &fonts)
    });
    let (number, is_new) = match store.invoices.issue_invoice(permit, &request, render).await? {
        IssueOutcome::New(number) => (number, true),
        IssueOutcome::AlreadyIssued(number) => (number, false),
    };
    // A warning only: scheduled jobs issue invoices without a person who could answer.
    if !has_address.load(Ordering::Relaxed) {
        eprintln!(
            "warning: {account} has no billing address, so invoice {number} shows only its name; set one with: chancery account billing"
        );
    }
    if *json {
        return print_json(&IssueOutput { number, is_new });
    }
    if is_new {
        outln!("invoice {number} issued: {account}, {month}");
        outln!("PDF: chancery invoice show {number} --pdf {number}.pdf");
    } else {
        outln!("invoice {number} already covers {account}, {month}; no change");
    }
    Ok(())
}
