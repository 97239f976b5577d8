//! What an address of the list asks for, read and written: every view of the list has an address.

use chancery_domain::{Bounds, Lines, PersonId};
use chancery_store::{ClientOrder, ClientQuery};
use chancery_web::{ErrorPage, parse_page};
use openidconnect::url::form_urlencoded;

/// Longest search, in characters.
const MAX_SEARCH_CHARS: usize = 200;

const SEARCH: Bounds =
    Bounds { what: "the search", min_chars: 0, max_chars: MAX_SEARCH_CHARS, lines: Lines::One };

const ORDERS: [(ClientOrder, &str); 8] = [
    (ClientOrder::RecentFirst, "recent"),
    (ClientOrder::OldestFirst, "oldest"),
    (ClientOrder::Name, "name"),
    (ClientOrder::NameBackwards, "-name"),
    (ClientOrder::Id, "id"),
    (ClientOrder::IdBackwards, "-id"),
    (ClientOrder::Owner, "owner"),
    (ClientOrder::OwnerBackwards, "-owner"),
];

/// As in `sort=`.
pub(super) fn order_name(order: ClientOrder) -> &'static str {
    ORDERS.iter().find(|(listed, _)| *listed == order).map_or("recent", |(_, name)| name)
}

pub(super) fn parse(query: &str) -> Result<ClientQuery, ErrorPage> {
    let mut asked = ClientQuery { page: 1, ..ClientQuery::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("q", words) => {
                asked.words = SEARCH
                    .take(words)
                    .map_err(|error| bad_parameter("q", &format!("cannot be searched for: {error}")))?;
            }
            ("owner" | "sort" | "page" | "archived", "") => {}
            ("owner", number) => {
                let number =
                    number.parse().map_err(|_| bad_parameter("owner", "is the number of a person"))?;
                asked.owner = Some(PersonId(number));
            }
            ("sort", wanted) => {
                let order = ORDERS.iter().find(|(_, name)| *name == wanted).map(|(order, _)| *order);
                let why = "is `recent`, `oldest`, `name`, `id` or `owner`, the last three with `-` in front for the other way round";
                asked.order = order.ok_or_else(|| bad_parameter("sort", why))?;
            }
            ("page", number) => {
                asked.page = parse_page(number).ok_or_else(|| bad_parameter("page", "is a number from 1"))?;
            }
            ("archived", "1") => asked.is_archived = true,
            ("archived", "0") => asked.is_archived = false,
            ("archived", _) => return Err(bad_parameter("archived", "is 1, or is left out")),
            _ => {}
        }
    }
    Ok(asked)
}

pub(super) fn bad_parameter(name: &str, why: &str) -> ErrorPage {
    ErrorPage::bad_parameter(name, why).next_link("/clients", "Go to the clients")
}

/// The address of a view, without what goes without saying.
pub(super) fn href(query: &ClientQuery) -> String {
    let mut written = form_urlencoded::Serializer::new(String::new());
    if !query.words.is_empty() {
        written.append_pair("q", &query.words);
    }
    if let Some(owner) = query.owner {
        written.append_pair("owner", &owner.to_string());
    }
    if query.order != ClientOrder::default() {
        written.append_pair("sort", order_name(query.order));
    }
    if query.is_archived {
        written.append_pair("archived", "1");
    }
    if query.page > 1 {
        written.append_pair("page", &query.page.to_string());
    }
    match written.finish() {
        written if written.is_empty() => "/clients".to_owned(),
        written => format!("/clients?{written}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_web::MAX_PAGE;

    #[test]
    fn every_view_has_an_address_that_leads_back_to_it() {
        for (order, _) in ORDERS {
            for is_archived in [false, true] {
                let view = ClientQuery {
                    words: "harbour & \"lane\" +1".to_owned(),
                    owner: Some(PersonId(3)),
                    is_archived,
                    order,
                    page: 7,
                };
                let address = href(&view);
                assert_eq!(parse(address.split_once('?').unwrap().1).unwrap(), view);
            }
        }
        assert_eq!(href(&parse("q=&owner=&sort=&page=").unwrap()), "/clients");
    }

    #[test]
    fn what_no_link_of_ours_says_is_refused_by_name() {
        for (query, name) in [
            ("page=abc", "`page`"),
            ("page=0", "`page`"),
            ("page=-1", "`page`"),
            ("sort=x", "`sort`"),
            ("owner=zz", "`owner`"),
            ("archived=yes", "`archived`"),
            ("q=a%00b", "`q`"),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.reason.contains(name), "{query}: {}", error.reason);
        }
        assert_eq!(parse("page=99999999999999").unwrap().page, MAX_PAGE);
    }
}
