//! Parses and writes the query string of the list: `account`, `state`, `year` and `page`. Empty values are ignored.

use chancery_domain::{AccountId, Day, InvoiceState};
use chancery_store::InvoiceQuery;
use chancery_web::{ErrorPage, parse_page};

/// Valid years of a month.
const YEARS: std::ops::RangeInclusive<i16> = 1970..=9998;

pub(super) fn parse(query: &str, today: Day) -> Result<InvoiceQuery, ErrorPage> {
    let mut parsed = InvoiceQuery { account: None, state: None, year: None, page: 1, today };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("account" | "state" | "year" | "page", "") => {}
            ("account", number) => {
                let number =
                    number.parse().map_err(|_| invalid_parameter("account", "must be an account number"))?;
                parsed.account = Some(AccountId(number));
            }
            ("state", state) => {
                let why = "must be `draft`, `issued`, `paid` or `void`";
                parsed.state = Some(state.parse().map_err(|_| invalid_parameter("state", why))?);
            }
            ("year", year) => {
                let year = year.parse().ok().filter(|year| YEARS.contains(year));
                parsed.year = Some(
                    year.ok_or_else(|| invalid_parameter("year", "must be a four-digit year like 2026"))?,
                );
            }
            ("page", number) => {
                parsed.page = parse_page(number)
                    .ok_or_else(|| invalid_parameter("page", "must be a number, 1 or more"))?;
            }
            _ => {}
        }
    }
    Ok(parsed)
}

fn invalid_parameter(name: &str, why: &str) -> ErrorPage {
    ErrorPage::invalid_parameter(name, why).next_link("/invoices", "Go to invoices")
}

pub(super) fn is_filtered(query: &InvoiceQuery) -> bool {
    query.account.is_some() || query.state.is_some() || query.year.is_some()
}

/// Whether the list pages through the months to invoice instead of documents.
pub(super) fn is_draft_list(query: &InvoiceQuery) -> bool {
    query.state == Some(InvoiceState::Draft)
}

/// URL of a view, without default values.
pub(super) fn href(path: &str, query: &InvoiceQuery) -> String {
    let mut query_string = form_urlencoded::Serializer::new(String::new());
    if let Some(account) = query.account {
        query_string.append_pair("account", &account.to_string());
    }
    if let Some(state) = query.state {
        query_string.append_pair("state", state.as_str());
    }
    if let Some(year) = query.year {
        query_string.append_pair("year", &year.to_string());
    }
    if query.page > 1 {
        query_string.append_pair("page", &query.page.to_string());
    }
    match query_string.finish() {
        query_string if query_string.is_empty() => path.to_owned(),
        query_string => format!("{path}?{query_string}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_web::MAX_PAGE;

    const TODAY: Day = Day(20_770);

    #[test]
    fn list_query_round_trips_through_the_url() {
        for state in InvoiceState::ALL {
            let view = InvoiceQuery {
                account: Some(AccountId(7)),
                state: Some(state),
                year: Some(2026),
                page: 3,
                today: TODAY,
            };
            let address = href("/invoices", &view);
            assert_eq!(parse(address.split_once('?').unwrap().1, TODAY).unwrap(), view);
        }
        let all = parse("account=&state=&year=&page=", TODAY).unwrap();
        assert_eq!((href("/invoices", &all).as_str(), is_filtered(&all)), ("/invoices", false));
    }

    #[test]
    fn invalid_query_parameters_are_rejected_by_name() {
        for (query, name) in [
            ("account=x", "`account`"),
            ("state=late", "`state`"),
            ("year=26", "`year`"),
            ("year=99999", "`year`"),
            ("page=0", "`page`"),
            ("page=-1", "`page`"),
        ] {
            let error = parse(query, TODAY).unwrap_err();
            assert!(error.reason.contains(name), "{query}: {}", error.reason);
        }
        assert_eq!(parse("page=99999999999999", TODAY).unwrap().page, MAX_PAGE);
    }
}
