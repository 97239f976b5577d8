//! `chancery invoice paid`: notes that an invoice is paid. Doing it again changes nothing.

use crate::operator::Operator;
use crate::output::{print_json, say};
use chancery_domain::InvoiceNumber;
use chancery_policy::{ManageInvoices, TheFirm};
use chancery_store::{AdminStore, PaymentDeed};
use serde_json::json;

pub async fn run(store: &AdminStore, number: InvoiceNumber, json: bool) -> anyhow::Result<()> {
    let permit = Operator::new()?.ask::<ManageInvoices>(store, TheFirm).await?;
    let state = store.invoices.note_payment(permit, number, PaymentDeed::Paid).await?;
    if json {
        return print_json(&json!({ "number": number, "state": state.as_str() }));
    }
    say!("invoice {number} is {}", state.as_str());
    Ok(())
}
