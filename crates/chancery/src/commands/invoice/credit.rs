//! `chancery invoice credit`: issues a credit note for all or part of an invoice.

use crate::cli::CreditInvoice as Options;
use crate::operator::Operator;
use crate::output::{outln, print_json};
use anyhow::bail;
use chancery_domain::{CreditAmount, Currency, InvoiceState, InvoiceTerms, MinorUnits, Nanos};
use chancery_invoicing::{PdfFonts, printable_pdf};
use chancery_policy::{FirmResource, ManageInvoices, ReadInvoices};
use chancery_store::{AdminStore, CreditRequest, InvoiceError, RenderInvoice};
use serde_json::json;

pub async fn run(
    store: &AdminStore,
    (terms, fonts): (InvoiceTerms, PdfFonts),
    options: &Options,
) -> anyhow::Result<()> {
    let number = options.number;
    let operator = Operator::new()?;
    let permit = operator.authorize::<ReadInvoices>(store, FirmResource).await?;
    let record =
        store.invoices.read_invoice(permit, number).await?.ok_or(InvoiceError::NoSuchInvoice(number))?;
    let amount = match &options.amount {
        None => CreditAmount::Full,
        // The invoice's currency determines the number of decimals.
        Some(amount) => CreditAmount::Part(in_minor_units(*amount, record.invoice.bill.currency)?),
    };
    let expected_credited = record.credited;
    let permit = operator.authorize::<ManageInvoices>(store, FirmResource).await?;
    let request =
        CreditRequest { invoice: number, amount, expected_credited, reason: options.reason.clone(), terms };
    let render: RenderInvoice = Box::new(move |invoice| printable_pdf(invoice, &fonts));
    let note = store.invoices.credit_invoice(permit, &request, render).await?;
    if options.json {
        return print_json(&json!({ "number": note, "credit_of": number }));
    }
    let permit = operator.authorize::<ReadInvoices>(store, FirmResource).await?;
    let is_void = store
        .invoices
        .read_invoice(permit, number)
        .await?
        .is_some_and(|record| record.state == InvoiceState::Void);
    if is_void {
        outln!("credit note {note} issued: invoice {number} is void, and its month can be invoiced again");
    } else {
        outln!("credit note {note} issued for part of invoice {number}");
    }
    outln!("PDF: chancery invoice show {note} --pdf {note}.pdf");
    Ok(())
}

fn in_minor_units(amount: Nanos, currency: Currency) -> anyhow::Result<MinorUnits> {
    let rounded = currency.round(amount);
    if currency.to_nanos(rounded)? != amount {
        let digits = currency.minor_digits();
        bail!("invalid --amount {amount}: {currency} has at most {digits} decimals");
    }
    Ok(rounded)
}
