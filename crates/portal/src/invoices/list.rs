//! `GET /invoices`: the issued documents, latest number first, their totals, and the months that are not invoiced yet; as a page or
//! JSON.

use super::list_query::{self, href, is_draft_list, is_filtered};
use super::list_rows::{DraftRow, Row, TotalsRow, as_json, common_currency};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Account, AccountState, Currency, Day, InvoiceState, MoneyError, Month, UnixMillis};
use chancery_policy::{FirmResource, ReadInvoices};
use chancery_store::{INVOICES_PER_PAGE, InvoicePage, InvoiceQuery};
use chancery_web::{Choice, PageLink, Pagination, page, wants_json};
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "invoices/list.html")]
struct ListPage<'a> {
    frame: Frame<'a>,
    choices: Choices,
    is_filtered: bool,
    is_draft_list: bool,
    csv: String,
    sums: Vec<TotalsRow>,
    rows: Vec<Row>,
    /// Shown in the header of the totals column if all rows have the same currency.
    header_currency: Option<String>,
    drafts: Vec<DraftRow>,
    /// Currency of the exact amounts.
    currency: String,
    drafts_total: u64,
    all_drafts: String,
    pages: Pagination,
}

/// Options of the filters.
struct Choices {
    accounts: Vec<Choice>,
    states: Vec<Choice>,
    years: Vec<Choice>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&signed_in, FirmResource).await?;
    let now = portal.clock.now();
    let query = list_query::parse(query.as_deref().unwrap_or_default(), Day::containing(now))?;
    let found = portal.store.invoices.list_invoices(permit, &query).await?;
    let (total, rows) = match is_draft_list(&query) {
        true => (found.unbilled_total, found.unbilled.len()),
        false => (found.total, found.invoices.len()),
    };
    let at_page = |page| href("/invoices", &InvoiceQuery { page, ..query.clone() });
    let pages = Pagination::new(query.page, INVOICES_PER_PAGE, total, rows, at_page);
    if wants_json(&headers) {
        return Ok(Json(as_json(&found, query.page, pages.count, total)?).into_response());
    }
    let choices = Choices::read(&portal, &query).await?;
    let frame = Frame::new(&portal, &signed_in, Section::Invoices);
    let currency = portal.settings.invoice_terms.currency;
    let list = ListPage::new(frame, &query, (&found, pages), choices, (currency, now))?;
    Ok(page(StatusCode::OK, &list)?)
}

impl<'a> ListPage<'a> {
    fn new(
        frame: Frame<'a>,
        query: &InvoiceQuery,
        (found, pages): (&InvoicePage, Pagination),
        choices: Choices,
        (currency, now): (Currency, UnixMillis),
    ) -> Result<Self, MoneyError> {
        let header_currency = common_currency(&found.invoices);
        let rows = found.invoices.iter().map(|listed| Row::new(listed, header_currency, now));
        Ok(Self {
            frame,
            choices,
            is_filtered: is_filtered(query),
            is_draft_list: is_draft_list(query),
            csv: href("/invoices.csv", &InvoiceQuery { page: 1, ..query.clone() }),
            sums: found.sums.iter().map(TotalsRow::new).collect(),
            rows: rows.collect::<Result<_, _>>()?,
            header_currency: header_currency.map(|currency| currency.as_str().to_owned()),
            drafts: found.unbilled.iter().map(|unbilled| DraftRow::new(unbilled, now)).collect(),
            currency: currency.as_str().to_owned(),
            drafts_total: found.unbilled_total,
            all_drafts: href(
                "/invoices",
                &InvoiceQuery { state: Some(InvoiceState::Draft), page: 1, ..query.clone() },
            ),
            pages,
        })
    }

    fn has_more_drafts(&self) -> bool {
        u64::try_from(self.drafts.len()).is_ok_and(|shown| shown < self.drafts_total)
    }

    /// Number of months that can be issued now. The newest come first, so if the last one shown can be issued, so can all that
    /// are not shown. Otherwise none of those shown can be issued, and the result is 0, which the page omits.
    fn ready_count(&self) -> u64 {
        let not_yet = self.drafts.iter().filter(|draft| draft.from.is_some()).count();
        match self.drafts.last() {
            Some(DraftRow { from: None, .. }) => self.drafts_total.saturating_sub(not_yet as u64),
            _ => 0,
        }
    }
}

impl Choices {
    async fn read(portal: &Portal, query: &InvoiceQuery) -> Result<Self, PageError> {
        let accounts = portal.store.account_lookup.list_accounts().await?;
        let account = |account: &Account| {
            let label = match account.state {
                AccountState::Open => account.name.to_string(),
                AccountState::Closed { .. } => format!("{} (closed)", account.name),
            };
            Choice::new(account.id.to_string(), label, query.account == Some(account.id))
        };
        let state =
            |state: InvoiceState| Choice::new(state.as_str(), state_label(state), query.state == Some(state));
        let numbers = portal.store.invoices.last_invoice_numbers().await?;
        let this_year = Month::containing(portal.clock.now()).year();
        let mut years: BTreeSet<i32> = numbers.iter().map(|number| i32::from(number.year)).collect();
        years.extend([this_year].into_iter().chain(query.year.map(i32::from)));
        let year = |year: i32| {
            Choice::new(year.to_string(), year.to_string(), query.year.map(i32::from) == Some(year))
        };
        Ok(Self {
            accounts: accounts.iter().map(account).collect(),
            states: InvoiceState::ALL.map(state).into(),
            years: years.into_iter().rev().map(year).collect(),
        })
    }
}

fn state_label(state: InvoiceState) -> &'static str {
    match state {
        InvoiceState::Draft => "Unbilled",
        InvoiceState::Issued => "Issued",
        InvoiceState::Paid => "Paid",
        InvoiceState::Void => "Void",
    }
}
