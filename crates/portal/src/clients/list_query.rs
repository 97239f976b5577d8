//! Parses and writes the query string of the client list. Every view of the list has a URL.

use chancery_domain::{Day, LineMode, PersonId, TextBounds};
use chancery_store::{ClientOrder, ClientQuery, DisputeFilter};
use chancery_web::{ErrorPage, parse_page};

const MAX_SEARCH_CHARS: usize = 200;

const SEARCH: TextBounds =
    TextBounds { what: "the search", min_chars: 0, max_chars: MAX_SEARCH_CHARS, lines: LineMode::Single };

const ORDERS: [(ClientOrder, &str); 8] = [
    (ClientOrder::RecentFirst, "recent"),
    (ClientOrder::OldestFirst, "oldest"),
    (ClientOrder::Name, "name"),
    (ClientOrder::NameDescending, "-name"),
    (ClientOrder::Id, "id"),
    (ClientOrder::IdDescending, "-id"),
    (ClientOrder::Owner, "owner"),
    (ClientOrder::OwnerDescending, "-owner"),
];

/// The value of `sort=`.
pub(super) fn order_name(order: ClientOrder) -> &'static str {
    ORDERS.iter().find(|(listed, _)| *listed == order).map_or("recent", |(_, name)| name)
}

/// The value of `disputes=`.
pub(super) fn dispute_filter_name(filter: Option<DisputeFilter>) -> &'static str {
    match filter {
        None => "",
        Some(DisputeFilter::Open) => "open",
        Some(DisputeFilter::DueBefore(_)) => "overdue",
    }
}

/// What was due before `today` is overdue.
pub(super) fn parse(query: &str, today: Day) -> Result<ClientQuery, ErrorPage> {
    let mut parsed = ClientQuery { page: 1, ..ClientQuery::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("q", terms) => {
                parsed.words = SEARCH
                    .take(terms)
                    .map_err(|error| invalid_parameter("q", &format!("is not valid: {error}")))?;
            }
            ("owner" | "disputes" | "sort" | "page" | "archived", "") => {}
            ("disputes", "open") => parsed.disputes = Some(DisputeFilter::Open),
            ("disputes", "overdue") => parsed.disputes = Some(DisputeFilter::DueBefore(today)),
            ("disputes", _) => {
                return Err(invalid_parameter("disputes", "must be `open` or `overdue`"));
            }
            ("owner", number) => {
                let number =
                    number.parse().map_err(|_| invalid_parameter("owner", "must be a person’s number"))?;
                parsed.owner = Some(PersonId(number));
            }
            ("sort", sort) => {
                let order = ORDERS.iter().find(|(_, name)| *name == sort).map(|(order, _)| *order);
                let why = "must be `recent`, `oldest`, `name`, `id` or `owner`; `-name`, `-id` and `-owner` sort descending";
                parsed.order = order.ok_or_else(|| invalid_parameter("sort", why))?;
            }
            ("page", number) => {
                parsed.page = parse_page(number)
                    .ok_or_else(|| invalid_parameter("page", "must be a number, 1 or more"))?;
            }
            ("archived", "1") => parsed.is_archived = true,
            ("archived", "0") => parsed.is_archived = false,
            ("archived", _) => return Err(invalid_parameter("archived", "must be 0 or 1")),
            _ => {}
        }
    }
    Ok(parsed)
}

pub(super) fn invalid_parameter(name: &str, why: &str) -> ErrorPage {
    ErrorPage::invalid_parameter(name, why).next_link("/clients", "Go to clients")
}

/// URL of a view, without default values.
pub(super) fn href(query: &ClientQuery) -> String {
    let mut query_string = form_urlencoded::Serializer::new(String::new());
    if !query.words.is_empty() {
        query_string.append_pair("q", &query.words);
    }
    if let Some(owner) = query.owner {
        query_string.append_pair("owner", &owner.to_string());
    }
    if query.disputes.is_some() {
        query_string.append_pair("disputes", dispute_filter_name(query.disputes));
    }
    if query.order != ClientOrder::default() {
        query_string.append_pair("sort", order_name(query.order));
    }
    if query.is_archived {
        query_string.append_pair("archived", "1");
    }
    if query.page > 1 {
        query_string.append_pair("page", &query.page.to_string());
    }
    match query_string.finish() {
        query_string if query_string.is_empty() => "/clients".to_owned(),
        query_string => format!("/clients?{query_string}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_web::MAX_PAGE;

    const TODAY: Day = Day(20_770);

    #[test]
    fn list_query_round_trips_through_the_url() {
        for (order, _) in ORDERS {
            for is_archived in [false, true] {
                let view = ClientQuery {
                    words: "harbour & \"lane\" +1".to_owned(),
                    owner: Some(PersonId(3)),
                    disputes: is_archived.then_some(DisputeFilter::DueBefore(TODAY)),
                    is_archived,
                    order,
                    page: 7,
                    counts_all: false,
                };
                let address = href(&view);
                assert_eq!(parse(address.split_once('?').unwrap().1, TODAY).unwrap(), view);
            }
        }
        assert_eq!(href(&parse("q=&owner=&disputes=&sort=&page=", TODAY).unwrap()), "/clients");
    }

    #[test]
    fn invalid_query_parameters_are_rejected_by_name() {
        for (query, name) in [
            ("page=abc", "`page`"),
            ("page=0", "`page`"),
            ("page=-1", "`page`"),
            ("sort=x", "`sort`"),
            ("owner=zz", "`owner`"),
            ("archived=yes", "`archived`"),
            ("disputes=late", "`disputes`"),
            ("q=a%00b", "`q`"),
        ] {
            let error = parse(query, TODAY).unwrap_err();
            assert!(error.reason.contains(name), "{query}: {}", error.reason);
        }
        assert_eq!(parse("page=99999999999999", TODAY).unwrap().page, MAX_PAGE);
    }
}
