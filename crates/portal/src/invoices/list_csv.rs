//! `GET /invoices.csv`: the list as a file for spreadsheets, with the same filters: every document that fits, or, for
//! `state=draft`, every month that is not invoiced. It is read page by page and sent when it is whole.

use super::list_query::{self, is_of_drafts};
use super::list_rows::kind_name;
use super::standing::Standing;
use crate::error::PageError;
use crate::file_reply::{Chunk, file_reply};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use chancery_client_files::{write_csv_cells, write_csv_line};
use chancery_domain::{Currency, Day, InvoiceKind, csv_cell};
use chancery_policy::{Permit, ReadInvoices, TheFirm};
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

/// How often to begin again where something is issued or paid while the file is read.
const MAX_TRIES: u32 = 5;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&who, TheFirm).await?;
    let today = Day::of(portal.clock.now());
    let query = list_query::parse(query.as_deref().unwrap_or_default(), today)?;
    let found = all_of(&portal, &who, &query, permit).await?;
    let (name, file) = match is_of_drafts(&query) {
        true => {
            let currency = portal.settings.invoice_terms.currency;
            (format!("drafts-{today}.csv"), drafts(&found.unbilled, currency))
        }
        false => (format!("invoices-{today}.csv"), documents(&found.invoices)),
    };
    Ok(file_reply("text/csv; charset=utf-8; header=present", &name, file?, stream::empty()))
}

/// Every page of the list in one. Where it changes while it is read, rows could be missing or there twice: it is read again.
async fn all_of(
    portal: &Portal,
    who: &SignedIn,
    query: &InvoiceQuery,
    permit: Permit<ReadInvoices>,
) -> Result<InvoicePage, PageError> {
    let is_of_drafts = is_of_drafts(query);
    let total_of = |page: &InvoicePage| if is_of_drafts { page.unbilled_total } else { page.total };
    let mut first_permit = Some(permit);
    for _ in 0..MAX_TRIES {
        let mut all: Option<InvoicePage> = None;
        let (mut page, mut is_whole) = (1, true);
        while all.as_ref().is_none_or(|all| page <= page_count(total_of(all), INVOICES_PER_PAGE)) {
            let permit = match first_permit.take() {
                Some(permit) => permit,
                None => portal.permit::<ReadInvoices>(who, TheFirm).await?,
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
        let rows = if is_of_drafts { all.unbilled.len() } else { all.invoices.len() };
        let is_in_order = all.invoices.is_sorted_by(|earlier, later| earlier.number > later.number);
        if is_whole && is_in_order && u64::try_from(rows) == Ok(total_of(&all)) {
            return Ok(all);
        }
    }
    Err(ErrorPage::unavailable("the list of invoices changed again and again while it was read").into())
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
            csv_cell(row.buyer.as_str()).into_owned(),
            row.month.to_string(),
            row.issued_at.to_iso(),
            row.due.to_string(),
            currency.as_str().to_owned(),
            currency.decimal(row.total),
            currency.decimal(row.credited.total),
            currency.decimal(Standing::listed(row).map_err(io::Error::other)?.outstanding),
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
            csv_cell(name.as_str()).into_owned(),
            month.to_string(),
            currency.as_str().to_owned(),
            totals.cost.to_string(),
            month.can_be_issued_from().to_iso(),
        ];
        write_csv_cells(&mut file, cells.map(Cow::Owned))?;
    }
    Ok(file)
}
