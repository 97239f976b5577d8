//! `GET /clients`: the clients that the person may read, as HTML or JSON.

use super::json;
use super::list_query::{self, dispute_filter_name, href, order_name};
use super::people::{self, OwnerChoice};
use super::search_matches::MatchView;
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, day_or_time};
use crate::total_text::total_text;
use askama::Template;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::UnixMillis;
use chancery_policy::{FirmResource, ListClients};
use chancery_store::{CLIENTS_PER_PAGE, ClientOrder, ClientQuery, ClientSummary, EntryMatch, ListTotal};
use chancery_web::{PageLink, Pagination, page, wants_json};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "clients/list.html")]
struct ListPage<'a> {
    frame: Frame<'a>,
    query: &'a ClientQuery,
    sort: &'static str,
    /// The value of `disputes=`.
    disputes: &'static str,
    heads: ColumnHeaders,
    rows: Vec<Row>,
    pages: Pagination,
    total: String,
    /// Empty for users who see only their own clients.
    owners: Vec<OwnerChoice>,
    sees_all: bool,
    toggle_archived_href: String,
    all: String,
    order_text: &'static str,
}

struct Row {
    id: i64,
    name: String,
    contact: String,
    owner: DisplayPerson,
    has_open_dispute: bool,
    is_overdue: bool,
    has_open_letter: bool,
    last_entry: Option<DisplayTime>,
    created: DisplayTime,
    matches: Vec<MatchView>,
}

/// A sortable column header: its link, and the current sort order.
struct ColumnHeader {
    href: String,
    aria_sort: Option<&'static str>,
}

struct ColumnHeaders {
    id: ColumnHeader,
    name: ColumnHeader,
    owner: ColumnHeader,
    last_entry: ColumnHeader,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let today = signed_in.local_time(&portal).today();
    let mut query = list_query::parse(query.as_deref().unwrap_or_default(), today)?;
    // A program reads page by page until the last one, which it must know.
    query.counts_all = wants_json(&headers);
    let permit = portal.permit::<ListClients>(&signed_in, FirmResource).await?;
    let found = portal.store.clients.list_clients(permit, &query).await?;
    let at_page = |page| href(&ClientQuery { page, ..query.clone() });
    let known = found.total.known();
    let mut pages = Pagination::new(query.page, CLIENTS_PER_PAGE, known, found.lines.len(), at_page);
    if matches!(found.total, ListTotal::MoreThan(_)) {
        pages = pages.open_ended();
    }
    let mut matches = portal.find_matches(&signed_in, &found).await?;
    if query.counts_all {
        return Ok(Json(json::list(&found, &query, &matches, pages.count)).into_response());
    }
    let people = people::visible_people(&portal, &signed_in).await?;
    let names = PersonNames::read(&portal).await?;
    let owners = people::choices_with_filter(&portal, &people, &names, query.owner).await?;
    let frame = Frame::new(&portal, &signed_in, Section::Clients);
    let local = signed_in.local_time(&portal);
    let rows = found.lines.into_iter().map(|line| {
        let matches = matches.remove(&line.client.id).unwrap_or_default();
        Row::new(line, matches, &names, &local)
    });
    let rows = rows.collect();
    let list = (rows, pages, total_text(found.total));
    Ok(page(StatusCode::OK, &ListPage::new(frame, &query, list, owners))?)
}

impl<'a> ListPage<'a> {
    fn new(
        frame: Frame<'a>,
        query: &'a ClientQuery,
        (rows, pages, total): (Vec<Row>, Pagination, String),
        owners: Vec<OwnerChoice>,
    ) -> Self {
        Self {
            frame,
            query,
            sort: order_name(query.order),
            disputes: dispute_filter_name(query.disputes),
            heads: ColumnHeaders::new(query),
            rows,
            pages,
            total,
            sees_all: !owners.is_empty(),
            owners,
            toggle_archived_href: href(&ClientQuery {
                is_archived: !query.is_archived,
                page: 1,
                ..ClientQuery::default()
            }),
            all: href(&ClientQuery { is_archived: query.is_archived, page: 1, ..ClientQuery::default() }),
            order_text: order_text(query.order),
        }
    }

    fn is_sorted(&self) -> bool {
        self.query.order != ClientOrder::default()
    }

    fn is_filtered(&self) -> bool {
        !self.query.words.is_empty() || self.query.owner.is_some() || self.query.disputes.is_some()
    }
}

impl Row {
    fn new(line: ClientSummary, matches: Vec<EntryMatch>, names: &PersonNames, local: &LocalTime) -> Self {
        let ClientSummary { client, open_disputes, open_letters, next_due } = line;
        let display_time = |at: UnixMillis| DisplayTime { iso: at.to_iso(), text: day_or_time(at, local) };
        Self {
            id: client.id.0,
            name: client.name.to_string(),
            contact: client.details.contact.to_string(),
            owner: names.of_ref(&client.owner),
            has_open_dispute: open_disputes > 0,
            is_overdue: next_due.is_some_and(|due| due < local.today()),
            has_open_letter: open_letters > 0,
            last_entry: client.last_entry_at.map(display_time),
            created: display_time(client.created_at),
            matches: matches.into_iter().map(|found| MatchView::new(client.id, found, local)).collect(),
        }
    }
}

impl ColumnHeaders {
    fn new(query: &ClientQuery) -> Self {
        let head = |up: ClientOrder, down: ClientOrder, first: ClientOrder| {
            let (order, aria_sort) = match query.order {
                order if order == up => (down, Some("ascending")),
                order if order == down => (up, Some("descending")),
                _ => (first, None),
            };
            ColumnHeader { href: href(&ClientQuery { order, page: 1, ..query.clone() }), aria_sort }
        };
        Self {
            id: head(ClientOrder::Id, ClientOrder::IdDescending, ClientOrder::Id),
            name: head(ClientOrder::Name, ClientOrder::NameDescending, ClientOrder::Name),
            owner: head(ClientOrder::Owner, ClientOrder::OwnerDescending, ClientOrder::Owner),
            last_entry: head(ClientOrder::OldestFirst, ClientOrder::RecentFirst, ClientOrder::RecentFirst),
        }
    }
}

fn order_text(order: ClientOrder) -> &'static str {
    match order {
        ClientOrder::RecentFirst => "newest entry first",
        ClientOrder::OldestFirst => "oldest entry first",
        ClientOrder::Name => "by name",
        ClientOrder::NameDescending => "by name, descending",
        ClientOrder::Id => "by number",
        ClientOrder::IdDescending => "by number, descending",
        ClientOrder::Owner => "by owner",
        ClientOrder::OwnerDescending => "by owner, descending",
    }
}
