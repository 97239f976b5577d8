//! Invoices as JSON. Amounts are decimal strings, so that no parser reads them as binary floating point.

use chancery_domain::{
    Invoice, InvoiceEvent, InvoiceEventKind, InvoiceKind, InvoiceLine, LineItem, MinorUnits, MoneyError,
    outstanding,
};
use chancery_store::InvoiceRecord;
use serde_json::{Value, json};

/// The issued document, without its later history.
pub fn document_json(invoice: &Invoice) -> Value {
    let Invoice { number, kind, month, issued_at, due, seller, buyer, bill } = invoice;
    let amount = |amount: MinorUnits| bill.currency.to_decimal_string(amount);
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

/// The document with its state, credits and timeline.
pub fn record_json(record: &InvoiceRecord) -> Result<Value, MoneyError> {
    let InvoiceRecord { invoice, state, credited, events, .. } = record;
    let outstanding = outstanding(&invoice.kind, *state, invoice.bill.total, *credited)?;
    let currency = &invoice.bill.currency;
    let mut value = document_json(invoice);
    value["state"] = json!(state.as_str());
    value["credited"] = json!(currency.to_decimal_string(credited.total));
    value["outstanding"] = json!(currency.to_decimal_string(outstanding));
    value["events"] = events.iter().map(event_json).collect();
    Ok(value)
}

fn event_json(event: &InvoiceEvent) -> Value {
    let (kind, note) = match event.kind {
        InvoiceEventKind::Issued => ("issued", None),
        InvoiceEventKind::Paid => ("paid", None),
        InvoiceEventKind::MarkedUnpaid => ("payment_taken_back", None),
        InvoiceEventKind::Credited(note) => ("credited", Some(note)),
        InvoiceEventKind::Voided(note) => ("voided", Some(note)),
    };
    let by = event.by.as_ref().map(|person| person.email.as_str());
    json!({ "deed": kind, "at": event.at.to_iso(), "by": by, "note": note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use chancery_domain::{CreditAmount, Credited, InvoiceState, UnixMillis};

    fn record(invoice: Invoice, state: InvoiceState, credited: Credited) -> InvoiceRecord {
        let note = invoice.number;
        let event = |kind| InvoiceEvent { kind, at: UnixMillis(0), by: None };
        let events = vec![event(InvoiceEventKind::Issued), event(InvoiceEventKind::Credited(note))];
        InvoiceRecord { invoice, state, credited, events, document_hash: [0; 32] }
    }

    #[test]
    fn json_has_all_document_fields_with_amounts_as_decimal_strings() {
        let credited = Credited { subtotal: MinorUnits(1000), total: MinorUnits(1062) };
        let value = record_json(&record(samples::ordinary(), InvoiceState::Issued, credited)).unwrap();
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
    fn discounted_cached_input_is_a_line_with_its_own_price() {
        let value = document_json(&samples::with_cached_input());
        assert_eq!(
            value["lines"][1],
            json!({
                "model": "qwen2.5-7b", "direction": "cached_input", "tokens": 100_000_000, "price_per_million": "0.075",
                "exact": "7.50", "exact_nanos": 7_500_000_000_i64, "amount": "7.50", "amount_minor": 750,
            })
        );
    }

    #[test]
    fn paid_and_void_invoices_and_credit_notes_have_0_outstanding() {
        for state in [InvoiceState::Paid, InvoiceState::Void] {
            let value = record_json(&record(samples::ordinary(), state, Credited::default())).unwrap();
            assert_eq!(value["outstanding"], "0.00");
        }
        let note = samples::credit(&samples::ordinary(), CreditAmount::Part(MinorUnits(1000)), "The outage");
        let value = record_json(&record(note, InvoiceState::Issued, Credited::default())).unwrap();
        assert_eq!((&value["credit_of"], &value["reason"]), (&json!("2026-0031"), &json!("The outage")));
        assert_eq!(
            value["lines"][0],
            json!({ "part": true, "exact": "-10.00", "exact_nanos": -10_000_000_000_i64, "amount": "-10.00", "amount_minor": -1000 })
        );
        assert_eq!((&value["total"], &value["outstanding"]), (&json!("-10.62"), &json!("0.00")));
    }
}
