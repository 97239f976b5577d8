//! `chancery invoice list`: issued invoices, latest first, with their totals and the months still to be invoiced.

use crate::cli::ListInvoices as Options;
use crate::operator::Operator;
use crate::output::{outln, print_json, print_table};
use chancery_domain::{
    AccountName, Clock, Day, InvoiceKind, InvoiceNumber, InvoiceState, MinorUnits, MoneyError, Month,
    SystemClock, UnixMillis,
};
use chancery_policy::{FirmResource, ReadInvoices};
use chancery_store::{AdminStore, InvoicePage, InvoiceQuery, InvoiceTotals, ListedInvoice, UnbilledMonth};
use serde_json::{Value, json};

/// All results that match the filters.
struct InvoiceListing {
    invoices: Vec<ListedInvoice>,
    sums: Vec<InvoiceTotals>,
    unbilled: Vec<UnbilledMonth>,
}

pub async fn run(store: &AdminStore, options: &Options) -> anyhow::Result<()> {
    let account = match &options.account {
        Some(name) => Some(store.account_lookup.account_by_name(name).await?.id),
        None => None,
    };
    let query = InvoiceQuery {
        account,
        state: options.state,
        year: options.year,
        page: 1,
        today: Day::containing(SystemClock.now()),
    };
    let mut found = all_pages(store, query.clone()).await?;
    if options.state.is_none() {
        // The first page of invoices includes only the first unbilled months.
        let drafts = InvoiceQuery { state: Some(InvoiceState::Draft), ..query };
        found.unbilled = all_pages(store, drafts).await?.unbilled;
    }
    if options.json { print_as_json(&found) } else { print(&found, options) }
}

async fn all_pages(store: &AdminStore, mut query: InvoiceQuery) -> anyhow::Result<InvoiceListing> {
    let operator = Operator::new()?;
    let mut found = InvoiceListing { invoices: Vec::new(), sums: Vec::new(), unbilled: Vec::new() };
    loop {
        let permit = operator.authorize::<ReadInvoices>(store, FirmResource).await?;
        let page: InvoicePage = store.invoices.list_invoices(permit, &query).await?;
        let is_of_drafts = query.state == Some(InvoiceState::Draft);
        let is_last = if is_of_drafts { page.unbilled.is_empty() } else { page.invoices.is_empty() };
        if query.page == 1 {
            found.sums = page.sums;
        }
        found.invoices.extend(page.invoices);
        if is_of_drafts {
            found.unbilled.extend(page.unbilled);
        }
        let (fetched, total) = match is_of_drafts {
            true => (found.unbilled.len(), page.unbilled_total),
            false => (found.invoices.len(), page.total),
        };
        if is_last || fetched as u64 >= total {
            return Ok(found);
        }
        query.page += 1;
    }
}

fn kind(invoice: &ListedInvoice) -> (&'static str, Option<InvoiceNumber>) {
    match invoice.kind {
        InvoiceKind::Invoice => ("invoice", None),
        InvoiceKind::CreditNote { of, .. } => ("credit_note", Some(of)),
    }
}

fn outstanding(listed: &ListedInvoice) -> Result<MinorUnits, MoneyError> {
    chancery_domain::outstanding(&listed.kind, listed.state, listed.total, listed.credited)
}

fn print_as_json(found: &InvoiceListing) -> anyhow::Result<()> {
    let account = |id: i64, name: &AccountName| json!({ "id": id, "name": name.as_str() });
    let invoice = |listed: &ListedInvoice| -> anyhow::Result<Value> {
        let (kind, credit_of) = kind(listed);
        let amount = |amount| listed.currency.to_decimal_string(amount);
        Ok(json!({
            "number": listed.number,
            "kind": kind,
            "credit_of": credit_of,
            "state": listed.state.as_str(),
            "account": account(listed.account.0, &listed.buyer),
            "month": listed.month.to_string(),
            "issued_at": listed.issued_at.to_iso(),
            "due": listed.due.to_string(),
            "currency": listed.currency.as_str(),
            "total": amount(listed.total),
            "outstanding": amount(outstanding(listed)?),
        }))
    };
    let draft = |UnbilledMonth { account: id, name, month, totals }: &UnbilledMonth| {
        json!({
            "account": account(id.0, name),
            "month": month.to_string(),
            "exact": totals.cost.to_string(),
            "can_be_issued_from": month.invoiceable_from().to_iso(),
        })
    };
    let sums = |sums: &InvoiceTotals| {
        let amount = |amount| sums.currency.to_decimal_string(amount);
        json!({
            "currency": sums.currency.as_str(),
            "billed": amount(sums.billed),
            "outstanding": amount(sums.outstanding),
            "overdue": amount(sums.overdue),
        })
    };
    print_json(&json!({
        "invoices": found.invoices.iter().map(invoice).collect::<anyhow::Result<Vec<_>>>()?,
        "drafts": found.unbilled.iter().map(draft).collect::<Vec<_>>(),
        "sums": found.sums.iter().map(sums).collect::<Vec<_>>(),
        "total": found.invoices.len(),
    }))
}

fn print(found: &InvoiceListing, options: &Options) -> anyhow::Result<()> {
    let row = |listed: &ListedInvoice| -> anyhow::Result<Vec<String>> {
        let what = match kind(listed).1 {
            None => listed.state.as_str().to_owned(),
            Some(of) => format!("credit for {of}"),
        };
        Ok(vec![
            listed.number.to_string(),
            listed.buyer.to_string(),
            listed.month.to_string(),
            what,
            listed.due.to_string(),
            listed.currency.format_amount(listed.total),
            listed.currency.format_amount(outstanding(listed)?),
        ])
    };
    if options.state != Some(InvoiceState::Draft) {
        let rows = found.invoices.iter().map(row).collect::<anyhow::Result<Vec<_>>>()?;
        print_table(&["NUMBER", "ACCOUNT", "MONTH", "STATE", "DUE", "TOTAL", "OUTSTANDING"], &rows);
        for InvoiceTotals { currency, billed, outstanding, overdue } in &found.sums {
            let [billed, outstanding, overdue] =
                [*billed, *outstanding, *overdue].map(|amount| currency.format_amount(amount));
            outln!("billed {billed}, outstanding {outstanding}, overdue {overdue}");
        }
    }
    if !found.unbilled.is_empty() {
        if options.state.is_none() {
            outln!("\nnot yet invoiced:");
        }
        let now = SystemClock.now();
        let row = |UnbilledMonth { name, month, totals, .. }: &UnbilledMonth| {
            vec![name.to_string(), month.to_string(), totals.cost.to_string(), issuable_from(*month, now)]
        };
        let rows: Vec<Vec<String>> = found.unbilled.iter().map(row).collect();
        print_table(&["ACCOUNT", "MONTH", "EXACT", "ISSUABLE"], &rows);
    }
    Ok(())
}

fn issuable_from(month: Month, now: UnixMillis) -> String {
    let from = month.invoiceable_from();
    if from <= now { "now".to_owned() } else { format!("from {}", from.to_iso()) }
}
