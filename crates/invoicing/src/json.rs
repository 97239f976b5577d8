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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use chancery_domain::{CreditAmount, Credited, UnixMillis};

    fn record(invoice: Invoice, state: InvoiceState, credited: Credited) -> InvoiceRecord {
        let note = invoice.number;
        let event = |deed| InvoiceEvent { deed, at: UnixMillis(0), by: None };
        let events = vec![event(InvoiceDeed::Issued), event(InvoiceDeed::Credited(note))];
        InvoiceRecord { invoice, state, credited, events, document_hash: [0; 32] }
    }

    #[test]
    fn amounts_are_decimals_in_strings_and_nothing_that_is_on_the_document_is_left_out() {
        let credited = Credited { subtotal: MinorUnits(1000), total: MinorUnits(1062) };
        let value = record_json(&record(samples::ordinary(), InvoiceState::Issued, credited));
        assert_eq!(
            (&value["number"], &value["kind"], &value["state"]),
            (&json!("2026-0031"), &json!("invoice"), &json!("issued"))
        );
        assert_eq!(value["account"], json!({ "id": 7, "name": "Brightwater Claims" }));
        assert_eq!(
            (&value["issued_at"], &value["due"]),
            (&json!("2026-11-02T09:12:00.000Z"), &json!("2026-12-02"))
        );
        assert_eq!(
            value["lines"][2],
            json!({
                "model": "qwen2.5-7b", "direction": "input", "tokens": 182_640_275, "price_per_million": "0.30",
                "exact": "54.7920825", "exact_nanos": 54_792_082_500_i64, "amount": "54.79", "amount_minor": 5479,
            })
        );
        assert_eq!(value["tax"], json!({ "name": "Sales tax", "percent": "6.25", "amount": "12.22" }));
        assert_eq!((&value["credited"], &value["outstanding"]), (&json!("10.62"), &json!("197.08")));
        assert_eq!(value["credit_of"], Value::Null);
        assert_eq!(
            value["events"][1],
            json!({ "deed": "credited", "at": "1970-01-01T00:00:00.000Z", "by": null, "note": "2026-0031" })
        );
    }

    #[test]
    fn nothing_is_outstanding_of_what_is_paid_void_or_a_credit_note() {
        for state in [InvoiceState::Paid, InvoiceState::Void] {
            let value = record_json(&record(samples::ordinary(), state, Credited::default()));
            assert_eq!(value["outstanding"], "0.00");
        }
        let note = samples::credit(&samples::ordinary(), CreditAmount::Part(MinorUnits(1000)), "The outage");
        let value = record_json(&record(note, InvoiceState::Issued, Credited::default()));
        assert_eq!((&value["credit_of"], &value["reason"]), (&json!("2026-0031"), &json!("The outage")));
        assert_eq!(
            value["lines"][0],
            json!({ "part": true, "exact": "-10.00", "exact_nanos": -10_000_000_000_i64, "amount": "-10.00", "amount_minor": -1000 })
        );
        assert_eq!((&value["total"], &value["outstanding"]), (&json!("-10.62"), &json!("0.00")));
    }
}
