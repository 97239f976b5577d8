//! `GET /usage`: a month of all accounts or of one, as a page or as JSON.

use super::breakdown::Breakdown;
use super::calendar::{Calendar, month_words};
use super::chart::Chart;
use super::daily::{Daily, DayTable};
use super::json;
use super::limits_card::LimitsCard;
use super::query::{Asked, address};
use super::refusals::{DayLine, Refusals, Why};
use super::stats::{self, Stat};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::written_day;
use askama::Template;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Account, AccountState, Currency, Day, Month, UnixMillis, grouped};
use chancery_policy::{ReadUsage, TheFirm};
use chancery_store::{LedgerError, UsageMonth, UsageReport, UsageTotals};
use chancery_web::{Choice, Problems, page, wants_json};
use std::sync::Arc;

/// Months to choose from; older ones have their address all the same.
const MAX_MONTHS_LISTED: usize = 120;

#[derive(Template)]
#[template(path = "usage/page.html")]
struct UsagePage<'a> {
    frame: Frame<'a>,
    problems: Problems,
    accounts: Vec<Choice>,
    /// How many accounts there are that cannot be chosen here, where there are any.
    accounts_left_out: Option<String>,
    months: Vec<Choice>,
    month: String,
    /// Whose usage, and of which days.
    span: String,
    body: Body,
}

/// What stands below the choosers.
enum Body {
    /// What was asked for cannot be shown; the choosers say why.
    Nothing,
    NoAccounts,
    /// Nothing was used or refused: what to say of it, and one way on with its name.
    Empty {
        words: String,
        way_on: (String, String),
    },
    Figures(Box<Figures>),
}

struct Figures {
    stats: [Stat; 4],
    /// None: nothing was used.
    used: Option<Used>,
    /// None: nothing was refused.
    refused: Option<Refused>,
    limits: Option<LimitsCard>,
    /// Days of the month that are not there yet, in words.
    to_come: Option<String>,
    month_name: String,
    currency: Currency,
    is_running: bool,
}

struct Used {
    tokens: Chart,
    spend: Chart,
    days: DayTable,
    breakdowns: Vec<Breakdown>,
}

struct Refused {
    chart: Chart,
    why: Vec<Why>,
    total: String,
    days: Vec<DayLine>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadUsage>(&signed_in, TheFirm).await?;
    let now = portal.clock.now();
    let asked = Asked::read(query.as_deref().unwrap_or_default(), Month::of(now));
    let found = portal.store.usage_reports.read_usage(permit, asked.month_of_account()).await;
    let (asked, report) = match found {
        Err(LedgerError::NoSuchAccountId(_)) => {
            // The form is shown again with every account that there is, and that is asked for like everything else.
            let asked = asked.without_account();
            let permit = portal.permit::<ReadUsage>(&signed_in, TheFirm).await?;
            let report = portal.store.usage_reports.read_usage(permit, asked.month_of_account()).await?;
            (asked, report)
        }
        found => (asked, found?),
    };
    let currency = portal.settings.invoice_terms.currency;
    let total = UsageTotals::of(&report.days)?;
    if wants_json(&headers) {
        return match asked.error() {
            Some(error) => Err(error.into()),
            None => Ok(Json(json::report(&report, &total, asked.month, currency)).into_response()),
        };
    }
    let status = if asked.problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let frame = Frame::new(&portal, &signed_in, Section::Usage);
    Ok(page(status, &UsagePage::new(frame, asked, &report, &total, Seen { now, currency }))?)
}

/// When and in what it is shown.
#[derive(Clone, Copy)]
struct Seen {
    now: UnixMillis,
    currency: Currency,
}

impl Asked {
    fn month_of_account(&self) -> UsageMonth {
        UsageMonth { account: self.account, month: self.month }
    }
}

impl<'a> UsagePage<'a> {
    fn new(frame: Frame<'a>, asked: Asked, report: &UsageReport, total: &UsageTotals, seen: Seen) -> Self {
        let calendar = Calendar { month: asked.month, today: Day::of(seen.now) };
        let whose =
            report.account.as_ref().map_or("All accounts".to_owned(), |account| account.name.to_string());
        Self {
            frame,
            accounts: report.accounts.iter().map(|account| account_choice(account, &asked)).collect(),
            accounts_left_out: (report.accounts_left_out > 0).then(|| grouped(report.accounts_left_out)),
            months: months(asked.month, report.first_month, Month::of(seen.now)),
            month: month_words(asked.month),
            span: format!("{whose}, {}", calendar.span_words()),
            body: match asked.problems.any() {
                true => Body::Nothing,
                false => Body::new(report, total, calendar, seen),
            },
            problems: asked.problems,
        }
    }
}

fn account_choice(account: &Account, asked: &Asked) -> Choice {
    let closed = if account.state == AccountState::Open { "" } else { " (closed)" };
    Choice::new(
        account.id.to_string(),
        format!("{}{closed}", account.name),
        asked.account == Some(account.id),
    )
}

/// From this month back to the first with usage, and the one that is shown, wherever it is.
fn months(shown: Month, first: Option<Month>, this_month: Month) -> Vec<Choice> {
    let first = first.map_or(this_month, |first| first.min(this_month));
    let all = std::iter::successors(Some(this_month), |month| Some(month.previous()));
    let mut listed: Vec<Month> = all.take_while(|month| *month >= first).take(MAX_MONTHS_LISTED).collect();
    if !listed.contains(&shown) {
        listed.push(shown);
    }
    let choice = |month: Month| Choice::new(month.to_string(), month_words(month), month == shown);
    listed.into_iter().map(choice).collect()
}

impl Body {
    fn new(report: &UsageReport, total: &UsageTotals, calendar: Calendar, seen: Seen) -> Self {
        let refusals = Refusals::of(&report.refusals);
        let is_used = total.requests > 0;
        if report.accounts.is_empty() && !refusals.any() {
            return Self::NoAccounts;
        }
        if !is_used && !refusals.any() {
            return Self::empty(report, calendar);
        }
        Self::Figures(Box::new(Figures::new(report, total, &refusals, calendar, seen)))
    }

    fn empty(report: &UsageReport, calendar: Calendar) -> Self {
        let account = report.account.as_ref();
        let who = account.map_or("No account sent a request".to_owned(), |account| {
            format!("{} sent no request", account.name)
        });
        let soon = if calendar.is_running() { " What is used stands here within a moment." } else { "" };
        let previous = calendar.month.previous();
        let way_on = match (report.previous.requests > 0, calendar.is_running()) {
            (true, _) => (
                address(account.map(|account| account.id), previous),
                format!("Show {}", month_words(previous)),
            ),
            (false, true) => ("/accounts".to_owned(), "Go to the accounts".to_owned()),
            (false, false) => ("/usage".to_owned(), "Show this month".to_owned()),
        };
        Self::Empty { words: format!("{who} that was billed or refused.{soon}"), way_on }
    }
}

impl Figures {
    fn new(
        report: &UsageReport,
        total: &UsageTotals,
        refusals: &Refusals,
        calendar: Calendar,
        seen: Seen,
    ) -> Self {
        let Seen { now, currency } = seen;
        let daily = Daily::new(&report.days, calendar, currency);
        let month =
            stats::Month { total, previous: &report.previous, refused: refusals.total, calendar, currency };
        let limits = report.account.as_ref();
        let limits =
            limits.map(|account| LimitsCard::new(account, total.cost, &report.peaks, calendar, currency));
        Self {
            stats: month.stats(),
            used: (total.requests > 0).then(|| Used::new(report, total, &daily)),
            refused: refusals.any().then(|| Refused {
                chart: daily.refusals_chart(refusals),
                why: refusals.why(now),
                total: grouped(refusals.total),
                days: refusals.day_lines(),
            }),
            limits,
            to_come: calendar.to_come_words(),
            month_name: written_day(calendar.month.first_day(), "%B"),
            currency,
            is_running: calendar.is_running(),
        }
    }
}

impl Used {
    fn new(report: &UsageReport, total: &UsageTotals, daily: &Daily) -> Self {
        let mut breakdowns =
            vec![Breakdown::by_model(&report.models, total), Breakdown::by_key(&report.keys, total)];
        if report.account.is_none() {
            breakdowns.push(Breakdown::by_account(&report.by_account, total, daily.month()));
        }
        Self {
            tokens: daily.tokens_chart(),
            spend: daily.spend_chart(),
            days: daily.table(total),
            breakdowns,
        }
    }
}
