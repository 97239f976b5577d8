//! `chancery invoice credit`: a credit note over an invoice, or over a part of it.

use crate::cli::CreditInvoice as Options;
use crate::operator::Operator;
use crate::output::{print_json, say};
use anyhow::bail;
use chancery_domain::{CreditAmount, Currency, InvoiceState, InvoiceTerms, MinorUnits, Nanos};
use chancery_policy::{ManageInvoices, ReadInvoices, TheFirm};
use chancery_store::{AdminStore, CreditOrder, InvoiceError};
use serde_json::json;

pub async fn run(store: &AdminStore, terms: InvoiceTerms, options: &Options) -> anyhow::Result<()> {
    let number = options.number;
    let operator = Operator::new()?;
    let permit = operator.ask::<ReadInvoices>(store, TheFirm).await?;
    let record =
        store.invoices.read_invoice(permit, number).await?.ok_or(InvoiceError::NoSuchInvoice(number))?;
    let amount = match &options.amount {
        None => CreditAmount::Whole,
        // How many decimals an amount has is up to the invoice's currency.
        Some(amount) => CreditAmount::Part(in_minor_units(*amount, record.invoice.bill.currency)?),
    };
    let credited_before = record.credited;
    let permit = operator.ask::<ManageInvoices>(store, TheFirm).await?;
    let order =
        CreditOrder { invoice: number, amount, credited_before, reason: options.reason.clone(), terms };
    let note = store.invoices.credit_invoice(permit, &order, &chancery_invoicing::pdf).await?;
    if options.json {
        return print_json(&json!({ "number": note, "credit_of": number }));
    }
    let permit = operator.ask::<ReadInvoices>(store, TheFirm).await?;
    let is_void = store
        .invoices
        .read_invoice(permit, number)
        .await?
        .is_some_and(|record| record.state == InvoiceState::Void);
    if is_void {
        say!(
            "credit note {note} issued: nothing is left of invoice {number}, so it is void, and its month can be issued anew"
        );
    } else {
        say!("credit note {note} issued: a part of invoice {number}");
    }
    say!("its PDF: chancery invoice show {note} --pdf {note}.pdf");
    Ok(())
}

fn in_minor_units(amount: Nanos, currency: Currency) -> anyhow::Result<MinorUnits> {
    let rounded = currency.round(amount);
    if currency.exactly(rounded)? != amount {
        let digits = currency.minor_digits();
        bail!("--amount {amount}: an amount in {currency} has at most {digits} decimals");
    }
    Ok(rounded)
}
