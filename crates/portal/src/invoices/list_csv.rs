//! `GET /invoices.csv`: the list as CSV, with the same filters: every matching document, or, for `state=draft`, every month that is
//! not invoiced. It is read page by page and sent when complete.

use super::list_query::{self, is_draft_list};
use super::list_rows::kind_name;
use super::payment_status::PaymentStatus;
use crate::error::PageError;
use crate::export_quota::count_export;
use crate::file_response::{Chunk, file_response};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use chancery_client_files::{write_csv_cells, write_csv_line};
use chancery_domain::{Currency, Day, InvoiceKind, escape_csv_formula};
use chancery_policy::{FirmResource, Permit, ReadInvoices};
use chancery_store::{INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, ListedInvoice, UnbilledMonth};
use chancery_web::{ErrorPage, page_count};
use futures_util::stream;
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

const COLUMNS: [&str; 13] = [
    "number",
    "kind",
    "credit_of",
    "state",
    "account_id",
    "account",
    "month",
    "issued_at",
    "due",
    "currency",
    "total",
    "credited",
    "outstanding",
];
const DRAFT_COLUMNS: [&str; 6] =
    ["account_id", "account", "month", "currency", "exact", "can_be_issued_from"];

/// Attempts to read the list without a change, such as a new invoice or a payment, in between.
const MAX_ATTEMPTS: u32 = 5;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&signed_in, FirmResource).await?;
    let today = Day::containing(portal.clock.now());
    let query = list_query::parse(query.as_deref().unwrap_or_default(), today)?;
    count_export(&portal, &signed_in).await?;
    let found = read_all_pages(&portal, &signed_in, &query, permit).await?;
    let (name, file) = match is_draft_list(&query) {
        true => {
            let currency = portal.settings.invoice_terms.currency;
            (format!("drafts-{today}.csv"), drafts(&found.unbilled, currency))
        }
        false => (format!("invoices-{today}.csv"), documents(&found.invoices)),
    };
    Ok(file_response("text/csv; charset=utf-8; header=present", &name, file?, stream::empty()))
}

/// Reads every page of the list. A change in between could lose or duplicate rows, so the whole list is then read again.
async fn read_all_pages(
    portal: &Portal,
    signed_in: &SignedIn,
    query: &InvoiceQuery,
    permit: Permit<ReadInvoices>,
) -> Result<InvoicePage, PageError> {
    let is_draft_list = is_draft_list(query);
    let total_of = |page: &InvoicePage| if is_draft_list { page.unbilled_total } else { page.total };
    let mut first_permit = Some(permit);
    for _ in 0..MAX_ATTEMPTS {
        let mut all: Option<InvoicePage> = None;
        let (mut page, mut is_whole) = (1, true);
        while all.as_ref().is_none_or(|all| page <= page_count(total_of(all), INVOICES_PER_PAGE)) {
            let permit = match first_permit.take() {
                Some(permit) => permit,
                None => portal.permit::<ReadInvoices>(signed_in, FirmResource).await?,
            };
            let query = InvoiceQuery { page, ..query.clone() };
            let read = portal.store.invoices.list_invoices(permit, &query).await?;
            match &mut all {
                None => all = Some(read),
                Some(all) => {
                    is_whole &= total_of(&read) == total_of(all);
                    all.invoices.extend(read.invoices);
                    all.unbilled.extend(read.unbilled);
                }
            }
            page += 1;
        }
        let all = all.unwrap_or_default();
        let rows = if is_draft_list { all.unbilled.len() } else { all.invoices.len() };
        let is_in_order = all.invoices.is_sorted_by(|earlier, later| earlier.number > later.number);
        if is_whole && is_in_order && u64::try_from(rows) == Ok(total_of(&all)) {
            return Ok(all);
        }
    }
    Err(ErrorPage::unavailable("invoice list kept changing during the export").into())
}

fn documents(listed: &[ListedInvoice]) -> io::Result<Chunk> {
    let mut file = Vec::new();
    write_csv_line(&mut file, COLUMNS)?;
    for row in listed {
        let currency = row.currency;
        let of = match row.kind {
            InvoiceKind::Invoice => String::new(),
            InvoiceKind::CreditNote { of, .. } => of.to_string(),
        };
        let cells = [
            row.number.to_string(),
            kind_name(&row.kind).to_owned(),
            of,
            row.state.as_str().to_owned(),
            row.account.to_string(),
            escape_csv_formula(row.buyer.as_str()).into_owned(),
            row.month.to_string(),
            row.issued_at.to_iso(),
            row.due.to_string(),
            currency.as_str().to_owned(),
            currency.to_decimal_string(row.total),
            currency.to_decimal_string(row.credited.total),
            currency.to_decimal_string(PaymentStatus::listed(row).map_err(io::Error::other)?.outstanding),
        ];
        write_csv_cells(&mut file, cells.map(Cow::Owned))?;
    }
    Ok(file)
}

fn drafts(unbilled: &[UnbilledMonth], currency: Currency) -> io::Result<Chunk> {
    let mut file = Vec::new();
    write_csv_line(&mut file, DRAFT_COLUMNS)?;
    for UnbilledMonth { account, name, month, totals } in unbilled {
        let cells = [
            account.to_string(),
            escape_csv_formula(name.as_str()).into_owned(),
            month.to_string(),
            currency.as_str().to_owned(),
            totals.cost.to_string(),
            month.invoiceable_from().to_iso(),
        ];
        write_csv_cells(&mut file, cells.map(Cow::Owned))?;
    }
    Ok(file)
}
