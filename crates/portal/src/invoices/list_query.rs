//! What an address of the list asks for, read and written: `account`, `state`, `year` and `page`. An empty one is none.

use chancery_domain::{AccountId, Day, InvoiceState};
use chancery_store::InvoiceQuery;
use chancery_web::{ErrorPage, parse_page};
use openidconnect::url::form_urlencoded;

/// The years that a month can be of.
const YEARS: std::ops::RangeInclusive<i16> = 1970..=9998;

pub(super) fn parse(query: &str, today: Day) -> Result<InvoiceQuery, ErrorPage> {
    let mut asked = InvoiceQuery { account: None, state: None, year: None, page: 1, today };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("account" | "state" | "year" | "page", "") => {}
            ("account", number) => {
                let number =
                    number.parse().map_err(|_| bad_parameter("account", "is the number of an account"))?;
                asked.account = Some(AccountId(number));
            }
            ("state", state) => {
                let why = "is `draft`, `issued`, `paid` or `void`";
                asked.state = Some(state.parse().map_err(|_| bad_parameter("state", why))?);
            }
            ("year", year) => {
                let year = year.parse().ok().filter(|year| YEARS.contains(year));
                asked.year = Some(
                    year.ok_or_else(|| bad_parameter("year", "is a year of four digits, such as 2026"))?,
                );
            }
            ("page", number) => {
                asked.page = parse_page(number).ok_or_else(|| bad_parameter("page", "is a number from 1"))?;
            }
            _ => {}
        }
    }
    Ok(asked)
}

fn bad_parameter(name: &str, why: &str) -> ErrorPage {
    ErrorPage::bad_parameter(name, why).next_link("/invoices", "Go to the invoices")
}

pub(super) fn is_filtered(query: &InvoiceQuery) -> bool {
    query.account.is_some() || query.state.is_some() || query.year.is_some()
}

/// Whether it is months to invoice that have pages, and no documents.
pub(super) fn is_of_drafts(query: &InvoiceQuery) -> bool {
    query.state == Some(InvoiceState::Draft)
}

/// The address of a view, without what goes without saying.
pub(super) fn href(path: &str, query: &InvoiceQuery) -> String {
    let mut written = form_urlencoded::Serializer::new(String::new());
    if let Some(account) = query.account {
        written.append_pair("account", &account.to_string());
    }
    if let Some(state) = query.state {
        written.append_pair("state", state.as_str());
    }
    if let Some(year) = query.year {
        written.append_pair("year", &year.to_string());
    }
    if query.page > 1 {
        written.append_pair("page", &query.page.to_string());
    }
    match written.finish() {
        written if written.is_empty() => path.to_owned(),
        written => format!("{path}?{written}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_web::MAX_PAGE;

    const TODAY: Day = Day(20_770);

    #[test]
    fn every_view_has_an_address_that_leads_back_to_it() {
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
    fn what_no_link_of_ours_says_is_refused_by_name() {
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
