//! `chancery invoice paid`: marks an invoice as paid. Repeating it changes nothing.

use crate::operator::Operator;
use crate::output::{outln, print_json};
use chancery_domain::InvoiceNumber;
use chancery_policy::{FirmResource, ManageInvoices};
use chancery_store::{AdminStore, PaymentChange};
use serde_json::json;

pub async fn run(store: &AdminStore, number: InvoiceNumber, json: bool) -> anyhow::Result<()> {
    let permit = Operator::new()?.authorize::<ManageInvoices>(store, FirmResource).await?;
    let state = store.invoices.record_payment(permit, number, PaymentChange::Paid).await?;
    if json {
        return print_json(&json!({ "number": number, "state": state.as_str() }));
    }
    outln!("invoice {number} is {}", state.as_str());
    Ok(())
}
