//! `GET /clients`: the clients that a person may read, as a page or as JSON.

use super::json;
use super::list_query::{self, href, order_name};
use super::people::{self, Choice};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::{Moment, day_or_time};
use askama::Template;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::UnixMillis;
use chancery_policy::{ListClients, TheFirm};
use chancery_store::{CLIENTS_PER_PAGE, ClientLine, ClientOrder, ClientPage, ClientQuery};
use chancery_web::{PageLink, Pagination, page, wants_json};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "clients/list.html")]
struct ListPage<'a> {
    frame: Frame<'a>,
    query: &'a ClientQuery,
    sort: &'static str,
    heads: Heads,
    rows: Vec<Row>,
    pages: Pagination,
    /// Empty for those who see their own clients alone.
    owners: Vec<Choice>,
    sees_all: bool,
    other_shelf: String,
    all: String,
    order_words: &'static str,
}

struct Row {
    id: i64,
    name: String,
    contact: String,
    owner: String,
    has_open_dispute: bool,
    has_open_letter: bool,
    last_entry: Option<Moment>,
}

/// A column's head: which order its link leads to, and whether the list is in its order now.
struct Head {
    href: String,
    aria_sort: Option<&'static str>,
}

struct Heads {
    id: Head,
    name: Head,
    owner: Head,
    last_entry: Head,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let query = list_query::parse(query.as_deref().unwrap_or_default())?;
    let permit = portal.permit::<ListClients>(&who, TheFirm).await?;
    let found = portal.store.clients.list_clients(permit, &query).await?;
    let at_page = |page| href(&ClientQuery { page, ..query.clone() });
    let pages = Pagination::new(query.page, CLIENTS_PER_PAGE, found.total, found.lines.len(), at_page);
    if wants_json(&headers) {
        return Ok(Json(json::list(&found, query.page, pages.count)).into_response());
    }
    let people = people::known_to(&portal, &who).await?;
    let owners = people::choices_with_filter(&portal, &people, query.owner).await?;
    let frame = Frame::new(&portal, &who, Section::Clients);
    Ok(page(StatusCode::OK, &ListPage::new(frame, &query, (found, pages), owners, portal.clock.now()))?)
}

impl<'a> ListPage<'a> {
    fn new(
        frame: Frame<'a>,
        query: &'a ClientQuery,
        (found, pages): (ClientPage, Pagination),
        owners: Vec<Choice>,
        now: UnixMillis,
    ) -> Self {
        Self {
            frame,
            query,
            sort: order_name(query.order),
            heads: Heads::new(query),
            rows: found.lines.into_iter().map(|line| Row::new(line, now)).collect(),
            pages,
            sees_all: !owners.is_empty(),
            owners,
            other_shelf: href(&ClientQuery {
                is_archived: !query.is_archived,
                page: 1,
                ..ClientQuery::default()
            }),
            all: href(&ClientQuery { is_archived: query.is_archived, page: 1, ..ClientQuery::default() }),
            order_words: order_words(query.order),
        }
    }

    fn is_sorted(&self) -> bool {
        self.query.order != ClientOrder::default()
    }

    fn is_filtered(&self) -> bool {
        !self.query.words.is_empty() || self.query.owner.is_some()
    }
}

impl Row {
    fn new(line: ClientLine, now: UnixMillis) -> Self {
        let ClientLine { client, open_disputes, open_letters } = line;
        let last_entry =
            client.last_entry_at.map(|at| Moment { iso: at.to_iso(), words: day_or_time(at, now) });
        Self {
            id: client.id.0,
            name: client.name.to_string(),
            contact: client.facts.contact.to_string(),
            owner: client.owner.email.to_string(),
            has_open_dispute: open_disputes > 0,
            has_open_letter: open_letters > 0,
            last_entry,
        }
    }
}

impl Heads {
    fn new(query: &ClientQuery) -> Self {
        let head = |up: ClientOrder, down: ClientOrder, first: ClientOrder| {
            let (order, aria_sort) = match query.order {
                order if order == up => (down, Some("ascending")),
                order if order == down => (up, Some("descending")),
                _ => (first, None),
            };
            Head { href: href(&ClientQuery { order, page: 1, ..query.clone() }), aria_sort }
        };
        Self {
            id: head(ClientOrder::Id, ClientOrder::IdBackwards, ClientOrder::Id),
            name: head(ClientOrder::Name, ClientOrder::NameBackwards, ClientOrder::Name),
            owner: head(ClientOrder::Owner, ClientOrder::OwnerBackwards, ClientOrder::Owner),
            last_entry: head(ClientOrder::OldestFirst, ClientOrder::RecentFirst, ClientOrder::RecentFirst),
        }
    }
}

fn order_words(order: ClientOrder) -> &'static str {
    match order {
        ClientOrder::RecentFirst => "newest entry first",
        ClientOrder::OldestFirst => "oldest entry first",
        ClientOrder::Name => "by name",
        ClientOrder::NameBackwards => "by name, backwards",
        ClientOrder::Id => "by number",
        ClientOrder::IdBackwards => "by number, backwards",
        ClientOrder::Owner => "by owner",
        ClientOrder::OwnerBackwards => "by owner, backwards",
    }
}
