//! Invoices as JSON. Amounts are decimals in strings, so that no reader takes them for binary fractions.

use chancery_domain::{
    Invoice, InvoiceDeed, InvoiceEvent, InvoiceKind, InvoiceLine, InvoiceState, LineItem, MinorUnits,
};
use chancery_store::InvoiceRecord;
use serde_json::{Value, json};

/// What is on the document.
pub fn document_json(invoice: &Invoice) -> Value {
    let Invoice { number, kind, month, issued_at, due, seller, buyer, bill } = invoice;
    let amount = |amount: MinorUnits| bill.currency.decimal(amount);
    let (kind, credit_of, reason) = match kind {
        InvoiceKind::Invoice => ("invoice", None, None),
        InvoiceKind::CreditNote { of, reason } => ("credit_note", Some(of), Some(reason)),
    };
    let tax = bill.tax.as_ref().map(
        |tax| json!({ "name": tax.name, "percent": tax.rate.to_string(), "amount": amount(tax.amount) }),
    );
    json!({
        "number": number,
        "kind": kind,
        "account": { "id": buyer.account.0, "name": buyer.name.as_str() },
        "month": month.to_string(),
        "issued_at": issued_at.to_iso(),
        "due": due.to_string(),
        "currency": bill.currency.as_str(),
        "lines": bill.lines.iter().map(|line| line_json(line, &amount)).collect::<Vec<_>>(),
        "subtotal": amount(bill.subtotal),
        "tax": tax,
        "total": amount(bill.total),
        "exact": bill.exact.to_string(),
        "exact_nanos": bill.exact,
        "credit_of": credit_of,
        "reason": reason,
        "seller": { "name": seller.name, "letterhead": seller.letterhead, "payment": seller.payment },
        "buyer": { "name": buyer.name.as_str(), "address": buyer.address.as_str(), "email": buyer.email.as_str() },
    })
}

fn line_json(line: &InvoiceLine, amount: &impl Fn(MinorUnits) -> String) -> Value {
    let mut value = match &line.item {
        LineItem::Tokens { model, direction, tokens, price } => json!({
            "model": model,
            "direction": direction.as_str(),
            "tokens": tokens,
            "price_per_million": price.to_string(),
        }),
        LineItem::Part => json!({ "part": true }),
    };
    value["exact"] = json!(line.exact.to_string());
    value["exact_nanos"] = json!(line.exact);
    value["amount"] = json!(amount(line.amount));
    value["amount_minor"] = json!(line.amount);
    value
}

/// The document with what became of it.
pub fn record_json(record: &InvoiceRecord) -> Value {
    let InvoiceRecord { invoice, state, credited, events, .. } = record;
    let currency = &invoice.bill.currency;
    let mut value = document_json(invoice);
    value["state"] = json!(state.as_str());
    value["credited"] = json!(currency.decimal(credited.total));
    value["outstanding"] = json!(currency.decimal(outstanding(record)));
    value["events"] = events.iter().map(event_json).collect();
    value
}

/// What is still to be paid of it. Nothing is ever due on a credit note.
fn outstanding(record: &InvoiceRecord) -> MinorUnits {
    match (&record.invoice.kind, record.state) {
        (InvoiceKind::Invoice, InvoiceState::Issued) => {
            // What was credited is never more than the total.
            MinorUnits(record.invoice.bill.total.0.saturating_sub(record.credited.total.0))
        }
        _ => MinorUnits(0),
    }
}

fn event_json(event: &InvoiceEvent) -> Value {
    let (deed, note) = match event.deed {
        InvoiceDeed::Issued => ("issued", None),
        InvoiceDeed::Paid => ("paid", None),
        InvoiceDeed::PaymentTakenBack => ("payment_taken_back", None),
        InvoiceDeed::Credited(note) => ("credited", Some(note)),
        InvoiceDeed::Voided(note) => ("voided", Some(note)),
    };
    let by = event.by.as_ref().map(|person| person.email.as_str());
    json!({ "deed": deed, "at": event.at.to_iso(), "by": by, "note": note })
}
