//! `GET /usage`: a month of one account or all, as a page or JSON.

use super::breakdown::Breakdown;
use super::calendar::{Calendar, month_text};
use super::chart::Chart;
use super::daily::{Daily, DayTable};
use super::json;
use super::limits_card::LimitsCard;
use super::query::{UsageQuery, href};
use super::rejections::{RejectionDayRow, RejectionRow, Rejections};
use super::stats::{self, Stat};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::format_day;
use askama::Template;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Account, AccountState, Currency, Day, Month, UnixMillis, group_thousands};
use chancery_policy::{FirmResource, ReadUsage};
use chancery_store::{LedgerError, MonthlyUsageQuery, UsageReport, UsageTotals};
use chancery_web::{Choice, Problems, page, wants_json};
use std::sync::Arc;

/// Months in the selector. Older ones can still be opened by URL.
const MAX_MONTHS_LISTED: usize = 120;

#[derive(Template)]
#[template(path = "usage/page.html")]
struct UsagePage<'a> {
    frame: Frame<'a>,
    problems: Problems,
    accounts: Vec<Choice>,
    /// The number of accounts that the selector omits, if any.
    accounts_omitted: Option<String>,
    months: Vec<Choice>,
    month: String,
    /// The account and the days shown.
    span: String,
    body: Body,
}

/// Content below the filters.
enum Body {
    /// The query is invalid; the filters show why.
    InvalidQuery,
    NoAccounts,
    /// No usage and no rejected requests: a message, and a link with its label.
    Empty {
        text: String,
        next_link: (String, String),
    },
    Figures(Box<Figures>),
}

struct Figures {
    stats: [Stat; 4],
    /// `None` if there was no usage.
    used: Option<UsageFigures>,
    /// `None` if no request was rejected.
    rejected: Option<RejectionFigures>,
    limits: Option<LimitsCard>,
    /// The upcoming days of the month, as text.
    future_days: Option<String>,
    month_name: String,
    currency: Currency,
    is_running: bool,
}

struct UsageFigures {
    tokens: Chart,
    spend: Chart,
    days: DayTable,
    breakdowns: Vec<Breakdown>,
}

struct RejectionFigures {
    chart: Chart,
    reasons: Vec<RejectionRow>,
    total: String,
    days: Vec<RejectionDayRow>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadUsage>(&signed_in, FirmResource).await?;
    let now = portal.clock.now();
    let usage_query = UsageQuery::read(query.as_deref().unwrap_or_default(), Month::containing(now));
    let found = portal.store.usage_reports.read_usage(permit, usage_query.month_of_account()).await;
    let (usage_query, report) = match found {
        Err(LedgerError::NoSuchAccountId(_)) => {
            // Show the form again with all accounts, which needs its own decision.
            let usage_query = usage_query.without_account();
            let permit = portal.permit::<ReadUsage>(&signed_in, FirmResource).await?;
            let report =
                portal.store.usage_reports.read_usage(permit, usage_query.month_of_account()).await?;
            (usage_query, report)
        }
        found => (usage_query, found?),
    };
    let currency = portal.settings.invoice_terms.currency;
    let total = UsageTotals::of(&report.days)?;
    if wants_json(&headers) {
        return match usage_query.error() {
            Some(error) => Err(error.into()),
            None => Ok(Json(json::report(&report, &total, usage_query.month, currency)).into_response()),
        };
    }
    let status = if usage_query.problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let frame = Frame::new(&portal, &signed_in, Section::Usage);
    Ok(page(status, &UsagePage::new(frame, usage_query, &report, &total, DisplayContext { now, currency }))?)
}

/// Current time and currency for the display.
#[derive(Clone, Copy)]
struct DisplayContext {
    now: UnixMillis,
    currency: Currency,
}

impl UsageQuery {
    fn month_of_account(&self) -> MonthlyUsageQuery {
        MonthlyUsageQuery { account: self.account, month: self.month }
    }
}

impl<'a> UsagePage<'a> {
    fn new(
        frame: Frame<'a>,
        usage_query: UsageQuery,
        report: &UsageReport,
        total: &UsageTotals,
        context: DisplayContext,
    ) -> Self {
        let calendar = Calendar { month: usage_query.month, today: Day::containing(context.now) };
        let account_name =
            report.account.as_ref().map_or("All accounts".to_owned(), |account| account.name.to_string());
        Self {
            frame,
            accounts: report.accounts.iter().map(|account| account_choice(account, &usage_query)).collect(),
            accounts_omitted: (report.accounts_omitted > 0).then(|| group_thousands(report.accounts_omitted)),
            months: months(usage_query.month, report.first_month, Month::containing(context.now)),
            month: month_text(usage_query.month),
            span: format!("{account_name}, {}", calendar.span_text()),
            body: match usage_query.problems.any() {
                true => Body::InvalidQuery,
                false => Body::new(report, total, calendar, context),
            },
            problems: usage_query.problems,
        }
    }
}

fn account_choice(account: &Account, usage_query: &UsageQuery) -> Choice {
    let closed = if account.state == AccountState::Open { "" } else { " (closed)" };
    Choice::new(
        account.id.to_string(),
        format!("{}{closed}", account.name),
        usage_query.account == Some(account.id),
    )
}

/// From the current month back to the first with usage, plus the selected month.
fn months(shown: Month, first: Option<Month>, this_month: Month) -> Vec<Choice> {
    let first = first.map_or(this_month, |first| first.min(this_month));
    let all = std::iter::successors(Some(this_month), |month| Some(month.previous()));
    let mut listed: Vec<Month> = all.take_while(|month| *month >= first).take(MAX_MONTHS_LISTED).collect();
    if !listed.contains(&shown) {
        listed.push(shown);
    }
    let choice = |month: Month| Choice::new(month.to_string(), month_text(month), month == shown);
    listed.into_iter().map(choice).collect()
}

impl Body {
    fn new(report: &UsageReport, total: &UsageTotals, calendar: Calendar, context: DisplayContext) -> Self {
        let rejections = Rejections::of(&report.rejections);
        let is_used = total.requests > 0;
        if report.accounts.is_empty() && !rejections.any() {
            return Self::NoAccounts;
        }
        if !is_used && !rejections.any() {
            return Self::empty(report, calendar);
        }
        Self::Figures(Box::new(Figures::new(report, total, &rejections, calendar, context)))
    }

    fn empty(report: &UsageReport, calendar: Calendar) -> Self {
        let account = report.account.as_ref();
        let summary = account.map_or("No account sent requests".to_owned(), |account| {
            format!("{} sent no requests", account.name)
        });
        let soon = if calendar.is_running() { " New usage appears within seconds." } else { "" };
        let previous = calendar.month.previous();
        let next_link = match (report.previous.requests > 0, calendar.is_running()) {
            (true, _) => {
                (href(account.map(|account| account.id), previous), format!("Show {}", month_text(previous)))
            }
            (false, true) => ("/accounts".to_owned(), "Go to accounts".to_owned()),
            (false, false) => ("/usage".to_owned(), "Show this month".to_owned()),
        };
        Self::Empty { text: format!("{summary} in {}.{soon}", month_text(calendar.month)), next_link }
    }
}

impl Figures {
    fn new(
        report: &UsageReport,
        total: &UsageTotals,
        rejections: &Rejections,
        calendar: Calendar,
        context: DisplayContext,
    ) -> Self {
        let DisplayContext { now, currency } = context;
        let daily = Daily::new(&report.days, calendar, currency);
        let month = stats::Month {
            total,
            previous: &report.previous,
            rejected: rejections.total,
            calendar,
            currency,
        };
        let limits = report.account.as_ref();
        let limits =
            limits.map(|account| LimitsCard::new(account, total.cost, &report.peaks, calendar, currency));
        Self {
            stats: month.stats(),
            used: (total.requests > 0).then(|| UsageFigures::new(report, total, &daily)),
            rejected: rejections.any().then(|| RejectionFigures {
                chart: daily.rejections_chart(rejections),
                reasons: rejections.reasons(now),
                total: group_thousands(rejections.total),
                days: rejections.day_lines(),
            }),
            limits,
            future_days: calendar.future_days_text(),
            month_name: format_day(calendar.month.first_day(), "%B"),
            currency,
            is_running: calendar.is_running(),
        }
    }
}

impl UsageFigures {
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
