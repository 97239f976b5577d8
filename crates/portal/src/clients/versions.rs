//! `GET /clients/{id}/versions` and `GET /clients/{id}/entries/{entry}/versions`: every version, newest first, with its author, time
//! and changes.

use super::details_edit::labelled_fields;
use super::diff::{DiffSpan, diff_spans};
use super::entry_form::day_field;
use super::entry_view::{badge, entry_kind_labels};
use super::list_query::invalid_parameter;
use crate::error::{PageError, client_not_found, entry_not_found};
use crate::frame::{Frame, Section};
use crate::path::{ClientNumber, EntryNumber};
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, comparable_time};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{ClientId, Currency, EntryKind, PersonId, UnixMillis, Version};
use chancery_policy::{ClientResource, EditClient, ReadClient};
use chancery_store::{ClientVersion, EntryVersion, VersionQuery};
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

const VERSIONS_PER_PAGE: usize = 20;
/// One more than shown: each version is compared with the one before it.
const VERSIONS_FETCHED: u32 = 21;

#[derive(Template)]
#[template(path = "clients/versions.html")]
struct VersionsPage<'a> {
    frame: Frame<'a>,
    client: i64,
    /// Name of the client, or title of the entry.
    title: String,
    subject: &'static str,
    back: String,
    back_label: &'static str,
    /// Where a version is restored. `None` if the user may not.
    restore_action: Option<String>,
    /// The current version.
    current: i64,
    versions: Vec<VersionRow>,
    /// URL of the next page, with older versions.
    older: Option<String>,
}

struct VersionRow {
    number: i64,
    /// `None`: the command line.
    by: Option<DisplayPerson>,
    at: DisplayTime,
    is_newest: bool,
    is_first: bool,
    changes: Vec<FieldChange>,
    /// All fields of this version.
    fields: Vec<(&'static str, String)>,
}

struct FieldChange {
    label: &'static str,
    diff_spans: Vec<DiffSpan>,
}

/// A version's fields with their labels.
struct Snapshot {
    number: i64,
    by: Option<DisplayPerson>,
    at: UnixMillis,
    fields: Vec<(&'static str, String)>,
}

pub(crate) async fn of_client(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let version_query = parse_before(query.as_deref().unwrap_or_default())?;
    let read = |permit| portal.store.clients.client_versions(permit, version_query);
    let found = portal.with_client_permit::<ReadClient, _, _>(&signed_in, id, read).await?;
    let (client, versions) = found.ok_or_else(client_not_found)?;
    let names = PersonNames::read(&portal).await?;
    let snapshots: Vec<Snapshot> =
        versions.into_iter().map(|version| client_snapshot(version, &names)).collect();
    let (versions, older) = version_rows(&snapshots, client.version, &signed_in.local_time(&portal));
    let shown = VersionsPage {
        frame: Frame::new(&portal, &signed_in, Section::Clients),
        client: id.0,
        title: client.name.to_string(),
        subject: "the details",
        back: format!("/clients/{id}"),
        back_label: "Go to client",
        restore_action: can_edit(&portal, &signed_in, id, Some(client.owner.id))
            .then(|| format!("/clients/{id}/versions/restore")),
        current: client.version.0,
        versions,
        older: older.map(|older| format!("/clients/{id}/versions?before={older}")),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

pub(crate) async fn of_entry(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let version_query = parse_before(query.as_deref().unwrap_or_default())?;
    let read = |permit| portal.store.clients.entry_versions(permit, entry, version_query);
    let found = portal.with_client_permit::<ReadClient, _, _>(&signed_in, client, read).await?;
    let (found, versions) = found.ok_or_else(|| entry_not_found(client))?;
    let (names, local) = (PersonNames::read(&portal).await?, signed_in.local_time(&portal));
    let owner = portal.store.clients.owner_of(client).await?;
    let currency = portal.settings.invoice_terms.currency;
    let snapshot = |version| entry_snapshot(found.kind, version, &names, (&local, currency));
    let snapshots: Vec<Snapshot> = versions.into_iter().map(snapshot).collect();
    let (versions, older) = version_rows(&snapshots, found.version, &local);
    let shown = VersionsPage {
        frame: Frame::new(&portal, &signed_in, Section::Clients),
        client: client.0,
        title: found.title.to_string(),
        subject: match found.kind {
            EntryKind::MeetingNote => "this note",
            EntryKind::BillingDispute => "this dispute",
            EntryKind::DraftLetter => "this letter",
        },
        back: format!("/clients/{client}#entry-{entry}"),
        back_label: "Go to record",
        // A sent letter cannot be changed.
        restore_action: (found.sent.is_none() && can_edit(&portal, &signed_in, client, owner))
            .then(|| format!("/clients/{client}/entries/{entry}/versions/restore")),
        current: found.version.0,
        versions,
        older: older.map(|older| format!("/clients/{client}/entries/{entry}/versions?before={older}")),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

/// Whether to offer to restore versions.
fn can_edit(portal: &Portal, signed_in: &SignedIn, id: ClientId, owner: Option<PersonId>) -> bool {
    portal.policy.is_allowed::<EditClient>(signed_in.principal(), ClientResource { id, owner })
}

fn parse_before(query: &str) -> Result<VersionQuery, ErrorPage> {
    let mut before = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name == "before" {
            let number =
                value.parse().map_err(|_| invalid_parameter("before", "must be a version number"))?;
            before = Some(Version(number));
        }
    }
    Ok(VersionQuery::Page { before, limit: VERSIONS_FETCHED })
}

fn client_snapshot(version: ClientVersion, names: &PersonNames) -> Snapshot {
    let mut fields = labelled_fields(&version.name, &version.details).to_vec();
    fields.push(("Owner", names.full_text(version.owner.id, &version.owner.email)));
    fields.push(("Archived", yes_or_no(version.is_archived).to_owned()));
    Snapshot {
        number: version.version.0,
        by: version.by.map(|person| names.of_ref(&person)),
        at: version.at,
        fields,
    }
}

fn entry_snapshot(
    kind: EntryKind,
    version: EntryVersion,
    names: &PersonNames,
    (local, currency): (&LocalTime, Currency),
) -> Snapshot {
    let mut fields = vec![
        ("Title", version.title.to_string()),
        (entry_kind_labels(kind).text_label, version.text.to_string()),
        ("Date", comparable_time(version.at, local)),
    ];
    if let Some(badge) = badge(kind, version.is_open) {
        fields.push(("Status", badge.label.to_owned()));
    }
    if kind == EntryKind::BillingDispute {
        let amount = version.dispute.amount.map(|amount| currency.format_amount(amount));
        fields.push(("Amount", amount.unwrap_or_default()));
        fields.push(("Due", day_field(version.dispute.due)));
    }
    fields.push(("Archived", yes_or_no(version.is_archived).to_owned()));
    Snapshot {
        number: version.version.0,
        by: version.by.map(|person| names.of_ref(&person)),
        at: version.changed_at,
        fields,
    }
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "Yes" } else { "No" }
}

/// One page of versions, each with its changes, and the version at which the next page begins.
fn version_rows(
    snapshots: &[Snapshot],
    newest: Version,
    local: &LocalTime,
) -> (Vec<VersionRow>, Option<i64>) {
    let shown = snapshots.iter().take(VERSIONS_PER_PAGE).enumerate().map(|(index, snapshot)| {
        let earlier = snapshots.get(index + 1);
        let changes = earlier.map_or_else(Vec::new, |earlier| changes(earlier, snapshot));
        VersionRow {
            number: snapshot.number,
            by: snapshot.by.clone(),
            at: DisplayTime::new(snapshot.at, local),
            is_newest: snapshot.number == newest.0,
            is_first: earlier.is_none(),
            changes,
            fields: snapshot.fields.clone(),
        }
    });
    let shown: Vec<VersionRow> = shown.collect();
    let older = shown.last().map(|last| last.number).filter(|_| snapshots.len() > VERSIONS_PER_PAGE);
    (shown, older)
}

fn changes(earlier: &Snapshot, later: &Snapshot) -> Vec<FieldChange> {
    let both = earlier.fields.iter().zip(&later.fields);
    both.filter(|((_, before), (_, after))| before != after)
        .map(|((_, before), (label, after))| FieldChange { label, diff_spans: diff_spans(before, after) })
        .collect()
}
