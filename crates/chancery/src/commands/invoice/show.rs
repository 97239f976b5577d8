//! `chancery invoice show`: one invoice or credit note, for reading, as JSON, or as the file that was issued.

use crate::cli::ShowInvoice as Options;
use crate::new_file;
use crate::operator::Operator;
use crate::output::{print_json, print_table, say};
use anyhow::Context;
use chancery_domain::{Day, Invoice, InvoiceDeed, InvoiceEvent, InvoiceKind, InvoiceLine, LineItem, grouped};
use chancery_policy::{ReadInvoices, TheFirm};
use chancery_store::{AdminStore, InvoiceError, InvoiceRecord};

pub async fn run(store: &AdminStore, options: &Options) -> anyhow::Result<()> {
    let number = options.number;
    let permit = Operator::new()?.ask::<ReadInvoices>(store, TheFirm).await?;
    let no_such = || InvoiceError::NoSuchInvoice(number);
    if let Some(path) = &options.pdf {
        let document = store.invoices.read_invoice_document(permit, number).await?.ok_or_else(no_such)?;
        return new_file::write(path, &document, options.force).context("the PDF was not written");
    }
    let record = store.invoices.read_invoice(permit, number).await?.ok_or_else(no_such)?;
    if let Some(path) = &options.csv {
        let file = chancery_invoicing::csv(&record.invoice).context("the CSV was not made")?;
        return new_file::write(path, &file, options.force).context("the CSV was not written");
    }
    if options.json {
        return print_json(&chancery_invoicing::record_json(&record)?);
    }
    print(&record);
    Ok(())
}

fn print(record: &InvoiceRecord) {
    let InvoiceRecord { invoice, state, credited, events, .. } = record;
    let Invoice { number, kind, month, issued_at, due, buyer, bill, .. } = invoice;
    let currency = &bill.currency;
    let issued = Day::of(*issued_at);
    match kind {
        InvoiceKind::Invoice => {
            say!(
                "invoice {number}: {}, {month} (UTC), issued {issued}, due {due}, {}",
                buyer.name,
                state.as_str()
            );
        }
        InvoiceKind::CreditNote { of, reason } => {
            say!("credit note {number} for invoice {of}: {}, {month} (UTC), issued {issued}", buyer.name);
            say!("reason: {reason}");
        }
    }
    say!("");
    let rows: Vec<Vec<String>> = bill.lines.iter().map(|line| cells(line, invoice)).collect();
    let amount = format!("AMOUNT {currency}");
    print_table(&["MODEL", "DIRECTION", "TOKENS", "PER MILLION", "EXACT", &amount], &rows);
    say!("");
    say!("subtotal {}", currency.to_read(bill.subtotal));
    if let Some(tax) = &bill.tax {
        say!("{}, {} % {}", tax.name, tax.rate, currency.to_read(tax.amount));
    }
    say!("total {} (exactly {} before rounding and tax)", currency.to_read(bill.total), bill.exact);
    if credited.total.0 != 0 {
        say!("credited {}", currency.to_read(credited.total));
    }
    say!("");
    events.iter().for_each(|event| say!("{}  {}", event.at.to_iso(), deed(event)));
}

fn cells(line: &InvoiceLine, invoice: &Invoice) -> Vec<String> {
    let (exact, amount) = (line.exact.to_string(), invoice.bill.currency.figures(line.amount));
    match &line.item {
        LineItem::Tokens { model, direction, tokens, price } => vec![
            model.clone(),
            direction.as_str().to_owned(),
            grouped(*tokens),
            price.to_string(),
            exact,
            amount,
        ],
        LineItem::Part => {
            vec!["(a part)".to_owned(), String::new(), String::new(), String::new(), exact, amount]
        }
    }
}

fn deed(event: &InvoiceEvent) -> String {
    let by = event.by.as_ref().map_or("the command line".to_owned(), |person| person.email.to_string());
    match event.deed {
        InvoiceDeed::Issued => format!("issued by {by}"),
        InvoiceDeed::Paid => format!("marked as paid by {by}"),
        InvoiceDeed::PaymentTakenBack => format!("marked as not paid by {by}"),
        InvoiceDeed::Credited(note) => format!("credited in part with {note} by {by}"),
        InvoiceDeed::Voided(note) => format!("credited as a whole with {note} by {by}: void"),
    }
}
