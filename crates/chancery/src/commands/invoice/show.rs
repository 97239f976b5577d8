//! `chancery invoice show`: prints one invoice or credit note as text or JSON, or writes the issued file.

use crate::cli::ShowInvoice as Options;
use crate::operator::Operator;
use crate::output::{outln, print_json, print_table};
use crate::output_file;
use anyhow::Context;
use chancery_domain::{
    Day, Invoice, InvoiceEvent, InvoiceEventKind, InvoiceKind, InvoiceLine, LineItem, group_thousands,
};
use chancery_policy::{FirmResource, ReadInvoices};
use chancery_store::{AdminStore, InvoiceError, InvoiceRecord};

pub async fn run(store: &AdminStore, options: &Options) -> anyhow::Result<()> {
    let number = options.number;
    let permit = Operator::new()?.authorize::<ReadInvoices>(store, FirmResource).await?;
    let no_such = || InvoiceError::NoSuchInvoice(number);
    if let Some(path) = &options.pdf {
        let document = store.invoices.read_invoice_document(permit, number).await?.ok_or_else(no_such)?;
        return output_file::write(path, &document, options.force).context("cannot save the PDF");
    }
    let record = store.invoices.read_invoice(permit, number).await?.ok_or_else(no_such)?;
    if let Some(path) = &options.csv {
        let file = chancery_invoicing::csv(&record.invoice).context("cannot create the CSV")?;
        return output_file::write(path, &file, options.force).context("cannot save the CSV");
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
    let issued = Day::containing(*issued_at);
    match kind {
        InvoiceKind::Invoice => {
            outln!(
                "invoice {number}: {}, {month} (UTC), issued {issued}, due {due}, {}",
                buyer.name,
                state.as_str()
            );
        }
        InvoiceKind::CreditNote { of, reason } => {
            outln!("credit note {number} for invoice {of}: {}, {month} (UTC), issued {issued}", buyer.name);
            outln!("reason: {reason}");
        }
    }
    outln!("");
    let rows: Vec<Vec<String>> = bill.lines.iter().map(|line| cells(line, invoice)).collect();
    let amount = format!("AMOUNT {currency}");
    print_table(&["MODEL", "DIRECTION", "TOKENS", "PER MILLION", "EXACT", &amount], &rows);
    outln!("");
    outln!("subtotal {}", currency.format_amount(bill.subtotal));
    if let Some(tax) = &bill.tax {
        outln!("{}, {} % {}", tax.name, tax.rate, currency.format_amount(tax.amount));
    }
    outln!(
        "total {} (exact amount before rounding and tax: {})",
        currency.format_amount(bill.total),
        bill.exact
    );
    if credited.total.0 != 0 {
        outln!("credited {}", currency.format_amount(credited.total));
    }
    outln!("");
    events.iter().for_each(|event| outln!("{}  {}", event.at.to_iso(), event_text(event)));
}

fn cells(line: &InvoiceLine, invoice: &Invoice) -> Vec<String> {
    let (exact, amount) = (line.exact.to_string(), invoice.bill.currency.figures(line.amount));
    match &line.item {
        LineItem::Tokens { model, direction, tokens, price } => vec![
            model.clone(),
            direction.label().to_owned(),
            group_thousands(*tokens),
            price.to_string(),
            exact,
            amount,
        ],
        LineItem::Part => {
            vec!["(partial credit)".to_owned(), String::new(), String::new(), String::new(), exact, amount]
        }
    }
}

fn event_text(event: &InvoiceEvent) -> String {
    let by = event.by.as_ref().map_or("command line".to_owned(), |person| person.email.to_string());
    match event.kind {
        InvoiceEventKind::Issued => format!("issued by {by}"),
        InvoiceEventKind::Paid => format!("marked as paid by {by}"),
        InvoiceEventKind::MarkedUnpaid => format!("marked as unpaid by {by}"),
        InvoiceEventKind::Credited(note) => format!("partially credited with {note} by {by}"),
        InvoiceEventKind::Voided(note) => format!("fully credited with {note} by {by}: void"),
    }
}
