//! `GET /clients/{id}/versions` and `GET /clients/{id}/entries/{entry}/versions`: every version, the newest first, with who made it,
//! when, and what it changed.

use super::differences::{Span, spans};
use super::entry_view::{badge, kind_words};
use super::facts_edit::labelled;
use super::list_query::bad_parameter;
use crate::error::{PageError, no_such_client, no_such_entry};
use crate::frame::{Frame, Section};
use crate::path::{ClientNumber, EntryNumber};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::{Moment, in_utc};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{EntryKind, UnixMillis, Version};
use chancery_policy::ReadClient;
use chancery_store::{ClientVersion, EntryVersion, VersionsWanted};
use chancery_web::{ErrorPage, page};
use openidconnect::url::form_urlencoded;
use std::sync::Arc;

/// Versions on one page.
const VERSIONS_PER_PAGE: usize = 20;
/// Each is compared with the one before it.
const VERSIONS_READ: u32 = 21;

#[derive(Template)]
#[template(path = "clients/versions.html")]
struct VersionsPage<'a> {
    frame: Frame<'a>,
    client: i64,
    /// Of the client, or of the entry.
    title: String,
    what: &'static str,
    back: String,
    back_label: &'static str,
    versions: Vec<VersionView>,
    /// The address of those before these.
    older: Option<String>,
}

struct VersionView {
    number: i64,
    by: String,
    at: Moment,
    is_newest: bool,
    is_first: bool,
    changes: Vec<FieldChange>,
    /// Everything, as it was.
    whole: Vec<(&'static str, String)>,
}

struct FieldChange {
    label: &'static str,
    spans: Vec<Span>,
}

/// A version's fields, as pages call them.
struct Snapshot {
    number: i64,
    by: Option<String>,
    at: UnixMillis,
    fields: Vec<(&'static str, String)>,
}

pub(crate) async fn of_client(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let wanted = parse_before(query.as_deref().unwrap_or_default())?;
    let read = |permit| portal.store.clients.client_versions(permit, wanted);
    let found = portal.with_client_permit::<ReadClient, _, _>(&who, id, read).await?;
    let (client, versions) = found.ok_or_else(no_such_client)?;
    let snapshots: Vec<Snapshot> = versions.into_iter().map(client_snapshot).collect();
    let (versions, older) = compared(&snapshots, client.version, portal.clock.now());
    let shown = VersionsPage {
        frame: Frame::new(&portal, &who, Section::Clients),
        client: id.0,
        title: client.name.to_string(),
        what: "the facts",
        back: format!("/clients/{id}"),
        back_label: "Go to the client",
        versions,
        older: older.map(|older| format!("/clients/{id}/versions?before={older}")),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

pub(crate) async fn of_entry(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let wanted = parse_before(query.as_deref().unwrap_or_default())?;
    let read = |permit| portal.store.clients.entry_versions(permit, entry, wanted);
    let found = portal.with_client_permit::<ReadClient, _, _>(&who, client, read).await?;
    let (found, versions) = found.ok_or_else(|| no_such_entry(client))?;
    let snapshots: Vec<Snapshot> =
        versions.into_iter().map(|version| entry_snapshot(found.kind, version)).collect();
    let (versions, older) = compared(&snapshots, found.version, portal.clock.now());
    let shown = VersionsPage {
        frame: Frame::new(&portal, &who, Section::Clients),
        client: client.0,
        title: found.title.to_string(),
        what: match found.kind {
            EntryKind::MeetingNote => "this note",
            EntryKind::BillingDispute => "this dispute",
            EntryKind::DraftLetter => "this letter",
        },
        back: format!("/clients/{client}#entry-{entry}"),
        back_label: "Go to the record",
        versions,
        older: older.map(|older| format!("/clients/{client}/entries/{entry}/versions?before={older}")),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

fn parse_before(query: &str) -> Result<VersionsWanted, ErrorPage> {
    let mut before = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name == "before" {
            let number = value.parse().map_err(|_| bad_parameter("before", "is the number of a version"))?;
            before = Some(Version(number));
        }
    }
    Ok(VersionsWanted::Page { before, limit: VERSIONS_READ })
}

fn client_snapshot(version: ClientVersion) -> Snapshot {
    let mut fields = labelled(&version.name, &version.facts).to_vec();
    fields.push(("Owner", version.owner.email.to_string()));
    fields.push(("Archived", yes_or_no(version.is_archived).to_owned()));
    Snapshot {
        number: version.version.0,
        by: version.by.map(|person| person.email.to_string()),
        at: version.at,
        fields,
    }
}

fn entry_snapshot(kind: EntryKind, version: EntryVersion) -> Snapshot {
    let mut fields = vec![
        ("Title", version.title.to_string()),
        (kind_words(kind).text_label, version.text.to_string()),
        ("When it happened", in_utc(version.at)),
    ];
    if let Some(badge) = badge(kind, version.is_open) {
        fields.push(("State", badge.word.to_owned()));
    }
    fields.push(("Archived", yes_or_no(version.is_archived).to_owned()));
    Snapshot {
        number: version.version.0,
        by: version.by.map(|person| person.email.to_string()),
        at: version.changed_at,
        fields,
    }
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "Yes" } else { "No" }
}

/// A page of versions, each with what it changed of the one before it; and where the next page begins.
fn compared(snapshots: &[Snapshot], newest: Version, now: UnixMillis) -> (Vec<VersionView>, Option<i64>) {
    let shown = snapshots.iter().take(VERSIONS_PER_PAGE).enumerate().map(|(place, snapshot)| {
        let earlier = snapshots.get(place + 1);
        let changes = earlier.map_or_else(Vec::new, |earlier| changes(earlier, snapshot));
        VersionView {
            number: snapshot.number,
            by: snapshot.by.clone().unwrap_or_else(|| "The command line".to_owned()),
            at: Moment::new(snapshot.at, now),
            is_newest: snapshot.number == newest.0,
            is_first: earlier.is_none(),
            changes,
            whole: snapshot.fields.clone(),
        }
    });
    let shown: Vec<VersionView> = shown.collect();
    let older = shown.last().map(|last| last.number).filter(|_| snapshots.len() > VERSIONS_PER_PAGE);
    (shown, older)
}

fn changes(earlier: &Snapshot, later: &Snapshot) -> Vec<FieldChange> {
    let both = earlier.fields.iter().zip(&later.fields);
    both.filter(|((_, before), (_, after))| before != after)
        .map(|((_, before), (label, after))| FieldChange { label, spans: spans(before, after) })
        .collect()
}
