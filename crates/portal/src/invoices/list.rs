//! `GET /invoices`: what was issued, the latest number first, what it comes to, and the months that are not invoiced yet; as a page or
//! as JSON.

use super::list_query::{self, href, is_filtered, is_of_drafts};
use super::list_rows::{DraftRow, Row, SumsRow, as_json, one_currency};
use super::{miscounted, refused};
use crate::clients::pagination::{PageLink, page_links};
use crate::failure::refused_by_store;
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
use chancery_web::{Refusal, page, wants_json};
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
    pages: Pages,
}

/// What the filters offer.
struct Choices {
    accounts: Vec<Choice>,
    states: Vec<Choice>,
    years: Vec<Choice>,
}

struct Choice {
    value: String,
    words: String,
    is_chosen: bool,
}

/// Where on the list this page is.
struct Pages {
    shown: u32,
    count: u32,
    total: u64,
    first: u64,
    last: u64,
    links: Vec<Link>,
    previous: Option<String>,
    next: Option<String>,
    last_page: String,
}

enum Link {
    Page { number: u32, href: String, is_shown: bool },
    Gap,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let permit = portal.permit::<ReadInvoices>(&who, TheFirm).await?;
    let now = portal.clock.now();
    let query = list_query::parse(query.as_deref().unwrap_or_default(), Day::of(now))?;
    let found = portal.store.list_invoices(permit, &query).await.map_err(|error| refused(&error))?;
    let total = if is_of_drafts(&query) { found.unbilled_total } else { found.total };
    if wants_json(&headers) {
        return Ok(
            Json(as_json(&found, query.page, pages_of(total), total).map_err(miscounted)?).into_response()
        );
    }
    let choices = Choices::read(&portal, &query).await?;
    let frame = Frame::new(&portal, &who, Section::Invoices);
    let currency = portal.settings.invoice_terms.currency;
    let list = ListPage::new(frame, &query, &found, choices, (currency, now)).map_err(miscounted)?;
    page(StatusCode::OK, &list)
}

pub(super) fn pages_of(total: u64) -> u32 {
    u32::try_from(total.div_ceil(u64::from(INVOICES_PER_PAGE)).max(1)).unwrap_or(u32::MAX)
}

impl<'a> ListPage<'a> {
    fn new(
        frame: Frame<'a>,
        query: &InvoiceQuery,
        found: &InvoicePage,
        choices: Choices,
        (currency, now): (Currency, UnixMillis),
    ) -> Result<Self, MoneyError> {
        let is_of_drafts = is_of_drafts(query);
        let (total, shown) = match is_of_drafts {
            true => (found.unbilled_total, found.unbilled.len()),
            false => (found.total, found.invoices.len()),
        };
        let in_head = one_currency(&found.invoices);
        let rows = found.invoices.iter().map(|listed| Row::new(listed, in_head, now));
        Ok(Self {
            frame,
            choices,
            is_filtered: is_filtered(query),
            is_of_drafts,
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
            pages: Pages::new(query, total, shown),
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
    async fn read(portal: &Portal, query: &InvoiceQuery) -> Result<Self, Refusal> {
        let accounts = portal.store.list_accounts().await.map_err(|error| refused_by_store(&error))?;
        let account = |account: &Account| Choice {
            value: account.id.to_string(),
            words: match account.state {
                AccountState::Open => account.name.to_string(),
                AccountState::Closed { .. } => format!("{} (closed)", account.name),
            },
            is_chosen: query.account == Some(account.id),
        };
        let state = |state: InvoiceState| Choice {
            value: state.as_str().to_owned(),
            words: state_words(state).to_owned(),
            is_chosen: query.state == Some(state),
        };
        let numbers = portal.store.last_invoice_numbers().await.map_err(|error| refused_by_store(&error))?;
        let this_year = Month::of(portal.clock.now()).year();
        let mut years: BTreeSet<i32> = numbers.iter().map(|number| i32::from(number.year)).collect();
        years.extend([this_year].into_iter().chain(query.year.map(i32::from)));
        let year = |year: i32| Choice {
            value: year.to_string(),
            words: year.to_string(),
            is_chosen: query.year.map(i32::from) == Some(year),
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

impl Pages {
    fn new(query: &InvoiceQuery, total: u64, shown: usize) -> Self {
        let count = pages_of(total);
        let at_page = |page| href("/invoices", &InvoiceQuery { page, ..query.clone() });
        let before = u64::from(query.page - 1) * u64::from(INVOICES_PER_PAGE);
        let link = |link| match link {
            PageLink::Page(number) => {
                Link::Page { number, href: at_page(number), is_shown: number == query.page }
            }
            PageLink::Gap => Link::Gap,
        };
        Self {
            shown: query.page,
            count,
            total,
            first: before + 1,
            last: before.saturating_add(u64::try_from(shown).unwrap_or(u64::MAX)),
            links: page_links(query.page, count).into_iter().map(link).collect(),
            previous: (query.page > 1 && query.page <= count).then(|| at_page(query.page - 1)),
            next: (query.page < count).then(|| at_page(query.page + 1)),
            last_page: at_page(count),
        }
    }
}
