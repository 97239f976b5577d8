//! `GET /invoices`: what was issued, the latest number first, what it comes to, and the months that are not invoiced yet; as a page or
//! as JSON.

use super::list_query::{self, href, is_filtered, is_of_drafts};
use super::list_rows::{DraftRow, Row, SumsRow, as_json, one_currency};
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
use chancery_policy::{ReadInvoices, TheFirm};
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
    is_of_drafts: bool,
    csv: String,
    sums: Vec<SumsRow>,
    rows: Vec<Row>,
    /// In the head of the column of totals, where all are of one.
    in_head: Option<String>,
    drafts: Vec<DraftRow>,
    /// What exact amounts are in.
    currency: String,
    drafts_total: u64,
    all_drafts: String,
    pages: Pagination,
}

/// What the filters offer.
struct Choices {
    accounts: Vec<Choice>,
    states: Vec<Choice>,
    years: Vec<Choice>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&who, TheFirm).await?;
    let now = portal.clock.now();
    let query = list_query::parse(query.as_deref().unwrap_or_default(), Day::of(now))?;
    let found = portal.store.invoices.list_invoices(permit, &query).await?;
    let (total, rows) = match is_of_drafts(&query) {
        true => (found.unbilled_total, found.unbilled.len()),
        false => (found.total, found.invoices.len()),
    };
    let at_page = |page| href("/invoices", &InvoiceQuery { page, ..query.clone() });
    let pages = Pagination::new(query.page, INVOICES_PER_PAGE, total, rows, at_page);
    if wants_json(&headers) {
        return Ok(Json(as_json(&found, query.page, pages.count, total)?).into_response());
    }
    let choices = Choices::read(&portal, &query).await?;
    let frame = Frame::new(&portal, &who, Section::Invoices);
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
        let in_head = one_currency(&found.invoices);
        let rows = found.invoices.iter().map(|listed| Row::new(listed, in_head, now));
        Ok(Self {
            frame,
            choices,
            is_filtered: is_filtered(query),
            is_of_drafts: is_of_drafts(query),
            csv: href("/invoices.csv", &InvoiceQuery { page: 1, ..query.clone() }),
            sums: found.sums.iter().map(SumsRow::new).collect(),
            rows: rows.collect::<Result<_, _>>()?,
            in_head: in_head.map(|currency| currency.as_str().to_owned()),
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

    /// How many months can be issued now. They are listed the newest first, so that those that are not shown here can be issued
    /// where the last that is shown can; otherwise none that is shown can, and nothing is said.
    fn ready(&self) -> u64 {
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
            let words = match account.state {
                AccountState::Open => account.name.to_string(),
                AccountState::Closed { .. } => format!("{} (closed)", account.name),
            };
            Choice::new(account.id.to_string(), words, query.account == Some(account.id))
        };
        let state =
            |state: InvoiceState| Choice::new(state.as_str(), state_words(state), query.state == Some(state));
        let numbers = portal.store.invoices.last_invoice_numbers().await?;
        let this_year = Month::of(portal.clock.now()).year();
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

fn state_words(state: InvoiceState) -> &'static str {
    match state {
        InvoiceState::Draft => "Not invoiced yet",
        InvoiceState::Issued => "Issued, not paid",
        InvoiceState::Paid => "Paid",
        InvoiceState::Void => "Void",
    }
}
