//! Which page of the account list to show. A page begins after an account, or ends before one, by name: `after=NAME` or
//! `before=NAME`, with `closed=1` if that account is closed. Programs may also count pages: `page=2`.

use chancery_domain::AccountName;
use chancery_store::{AccountCursor, AccountOverview, AccountPage, AccountPosition};
use chancery_web::{ErrorPage, parse_page};
use std::collections::HashMap;

/// URLs of the adjacent pages.
pub(super) struct PageLinks {
    pub(super) previous: Option<String>,
    pub(super) next: Option<String>,
}

impl PageLinks {
    pub(super) fn new(found: &AccountPage) -> Self {
        let link = |parameter: &str, overview: Option<&AccountOverview>| {
            overview.map(|overview| href(parameter, &AccountPosition::of(&overview.account)))
        };
        let first = found.accounts.first().filter(|_| found.has_previous);
        let last = found.accounts.last().filter(|_| found.has_next);
        Self { previous: link("before", first), next: link("after", last) }
    }
}

pub(super) fn parse(query: &HashMap<String, String>) -> Result<Option<AccountCursor>, ErrorPage> {
    let is_closed = match query.get("closed").map_or("", String::as_str) {
        "1" => true,
        "" | "0" => false,
        _ => return Err(invalid_parameter("closed", "must be 0 or 1")),
    };
    let position = |parameter: &str| match query.get(parameter).filter(|name| !name.is_empty()) {
        // PostgreSQL cannot compare such a text.
        Some(name) if name.contains('\0') => {
            Err(invalid_parameter(parameter, "must be the name of an account"))
        }
        Some(name) => Ok(Some(AccountPosition { is_closed, name: AccountName::from_stored(name.clone()) })),
        None => Ok(None),
    };
    if let Some(after) = position("after")? {
        return Ok(Some(AccountCursor::After(after)));
    }
    if let Some(before) = position("before")? {
        return Ok(Some(AccountCursor::Before(before)));
    }
    match query.get("page").filter(|number| !number.is_empty()) {
        None => Ok(None),
        Some(number) => match parse_page(number) {
            None => Err(invalid_parameter("page", "must be a number, 1 or more")),
            // The index has the first page.
            Some(1) => Ok(None),
            Some(number) => Ok(Some(AccountCursor::Page(number))),
        },
    }
}

/// `None` for a page that begins or ends at a name: what is before it is not counted.
pub(super) fn page_number(cursor: Option<&AccountCursor>) -> Option<u32> {
    match cursor {
        None => Some(1),
        Some(AccountCursor::Page(number)) => Some(*number),
        Some(AccountCursor::After(_) | AccountCursor::Before(_)) => None,
    }
}

fn invalid_parameter(name: &str, why: &str) -> ErrorPage {
    ErrorPage::invalid_parameter(name, why).next_link("/accounts", "Go to accounts")
}

fn href(parameter: &str, position: &AccountPosition) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair(parameter, position.name.as_str());
    if position.is_closed {
        query.append_pair("closed", "1");
    }
    format!("/accounts?{}", query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Option<AccountCursor>, ErrorPage> {
        let query = url.split_once('?').map_or("", |(_, query)| query);
        parse(&form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    #[test]
    fn position_in_the_account_list_round_trips_through_the_url() {
        for name in ["Hale & Ward", "Büro +1", "a=b&closed=1", "法律"] {
            for is_closed in [false, true] {
                let position = AccountPosition { is_closed, name: name.parse().unwrap() };
                let (after, before) = (href("after", &position), href("before", &position));
                assert_eq!(parsed(&after).unwrap(), Some(AccountCursor::After(position.clone())));
                assert_eq!(parsed(&before).unwrap(), Some(AccountCursor::Before(position)));
            }
        }
        for first in ["/accounts", "/accounts?after=&before=&page=", "/accounts?page=1"] {
            assert_eq!(parsed(first).unwrap(), None, "{first}");
        }
        assert_eq!(parsed("/accounts?page=2").unwrap(), Some(AccountCursor::Page(2)));
    }

    #[test]
    fn invalid_query_parameters_are_rejected_by_name() {
        for (parameter, value) in [("after", "a%00b"), ("before", "a%00b"), ("closed", "yes"), ("page", "0")]
        {
            let error = parsed(&format!("/accounts?{parameter}={value}")).unwrap_err();
            assert!(error.reason.contains(&format!("`{parameter}`")), "{}", error.reason);
        }
    }
}
