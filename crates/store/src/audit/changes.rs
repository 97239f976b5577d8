//! What audited changes of records did: the fields of each version that differ from the version before it. A version has the
//! person and the time of its permit, and so does the audit row of that permit.

use crate::DbError;
use crate::audit::log::AuditLog;
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::types::{AuditListRow, ChangedEntry, FieldChange, FieldValue, RecordChange, RecordField};
use crate::db::{QueryError, Statement, Tx, from_row};
use chancery_domain::{
    Action, ClientId, ClientName, ContactDetails, Decision, DisputeDetails, EntryId, EntryKind, PersonId,
    PersonRef, UnixMillis, Version,
};
use chancery_policy::{Permit, ReadAudit};
use std::collections::{BTreeMap, BTreeSet};

/// Each matching version (`n`), and the one before it.
const OF_CLIENTS: &str = "SELECT n.version AS changed_version, n.actor_id AS changed_by, n.at_ms AS changed_at, \
    v.client_id, v.version, v.name, v.contact, v.email, v.telephone, v.address, v.since_day, v.owner_id, \
    o.email AS owner_email, v.is_archived FROM client_versions n \
    JOIN client_versions v ON v.client_id = n.client_id AND v.version IN (n.version, n.version - 1) \
    JOIN people o ON o.id = v.owner_id WHERE n.client_id IN ";
/// Texts are long, so only whether they differ is read.
const OF_ENTRIES: &str = "SELECT n.version AS changed_version, n.actor_id AS changed_by, n.changed_at_ms AS changed_at, \
    e.client_id, e.kind, v.entry_id, v.version, v.title, v.at_ms, v.is_open, v.amount_minor, v.due_day, v.is_archived, \
    CAST(CASE WHEN v.text = n.text THEN 0 ELSE 1 END AS BIGINT) AS differs_in_text FROM entries e \
    JOIN entry_versions n ON n.entry_id = e.id \
    JOIN entry_versions v ON v.entry_id = n.entry_id AND v.version IN (n.version, n.version - 1) \
    WHERE e.client_id IN ";

/// The version that a change made, and who made it when.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ChangedVersion {
    version: i64,
    by: Option<PersonId>,
    at: UnixMillis,
}

from_row!(ChangedVersion { version: "changed_version", by: "changed_by", at: "changed_at" });

struct ClientState {
    changed: ChangedVersion,
    client: ClientId,
    version: Version,
    name: ClientName,
    details: ContactDetails,
    owner: PersonRef,
    is_archived: bool,
}

from_row!(ClientState {
    changed: ChangedVersion::from_row,
    client: "client_id",
    version,
    name,
    details: ContactDetails::from_row,
    owner: person("owner_id", "owner_email"),
    is_archived
});

struct EntryState {
    changed: ChangedVersion,
    client: ClientId,
    kind: EntryKind,
    entry: EntryId,
    version: Version,
    title: String,
    at: UnixMillis,
    is_open: bool,
    dispute: DisputeDetails,
    is_archived: bool,
    differs_in_text: bool,
}

from_row!(EntryState {
    changed: ChangedVersion::from_row,
    client: "client_id",
    kind,
    entry: "entry_id",
    version,
    title,
    at: "at_ms",
    is_open,
    dispute: DisputeDetails::from_row,
    is_archived,
    differs_in_text: flag("differs_in_text")
});

/// A version's comparable fields.
type Fields = Vec<(RecordField, FieldValue)>;

fn client_fields(state: &ClientState) -> Fields {
    let ContactDetails { contact, email, telephone, address, since } = &state.details;
    let since = since.map_or_else(String::new, |day| day.to_string());
    vec![
        (RecordField::Name, FieldValue::Text(state.name.to_string())),
        (RecordField::Contact, FieldValue::Text(contact.to_string())),
        (RecordField::Email, FieldValue::Text(email.to_string())),
        (RecordField::Telephone, FieldValue::Text(telephone.to_string())),
        (RecordField::Address, FieldValue::Text(address.to_string())),
        (RecordField::Since, FieldValue::Text(since)),
        (RecordField::Owner, FieldValue::Person(state.owner.clone())),
        (RecordField::Archived, FieldValue::Flag(state.is_archived)),
    ]
}

fn entry_fields(state: &EntryState) -> Fields {
    let DisputeDetails { amount, due } = state.dispute;
    let due = due.map_or_else(String::new, |day| day.to_string());
    vec![
        (RecordField::Title, FieldValue::Text(state.title.clone())),
        (RecordField::Text, FieldValue::LongText { differs: state.differs_in_text }),
        (RecordField::Date, FieldValue::Time(state.at)),
        (RecordField::Open, FieldValue::Flag(state.is_open)),
        (RecordField::Amount, FieldValue::Amount(amount)),
        (RecordField::Due, FieldValue::Text(due)),
        (RecordField::Archived, FieldValue::Flag(state.is_archived)),
    ]
}

fn differences(before: Fields, after: Fields) -> Vec<FieldChange> {
    let both = before.into_iter().zip(after);
    both.filter(|((_, old), (_, new))| old != new)
        .map(|((field, old), (_, new))| FieldChange { field, old, new })
        .collect()
}

/// Pairs each changed version with the one before it. A first version has none. The key is the record with its change, and
/// the version of the state.
fn pairs<T>(states: Vec<T>, key: impl Fn(&T) -> (i64, ChangedVersion, Version)) -> Vec<(Option<T>, T)> {
    let mut by_change: BTreeMap<(i64, ChangedVersion), (Option<T>, Option<T>)> = BTreeMap::new();
    for state in states {
        let (record, changed, version) = key(&state);
        let pair = by_change.entry((record, changed)).or_default();
        match version.0 == changed.version {
            true => pair.1 = Some(state),
            false => pair.0 = Some(state),
        }
    }
    by_change.into_values().filter_map(|(before, after)| Some((before, after?))).collect()
}

fn changes(
    tx: &mut Tx<'_>,
    clients: &BTreeSet<ClientId>,
    times: &BTreeSet<UnixMillis>,
) -> Result<Vec<RecordChange>, QueryError> {
    let of = |sql: &str, time: &str| {
        let mut read = Statement::new(sql);
        read.push_list(clients.iter().map(|client| client.0)).push(time);
        read.push_list(times.iter().map(|at| at.0));
        read.build()
    };
    let states: Vec<ClientState> = of(OF_CLIENTS, " AND n.at_ms IN ").fetch_all(tx)?;
    let of_clients = pairs(states, |state| (state.client.0, state.changed, state.version)).into_iter().map(
        |(before, after)| RecordChange {
            client: after.client,
            entry: None,
            by: after.changed.by,
            at: after.changed.at,
            is_new: before.is_none(),
            fields: before
                .map_or_else(Vec::new, |before| differences(client_fields(&before), client_fields(&after))),
        },
    );
    let mut changes: Vec<RecordChange> = of_clients.collect();
    let states: Vec<EntryState> = of(OF_ENTRIES, " AND n.changed_at_ms IN ").fetch_all(tx)?;
    changes.extend(pairs(states, |state| (state.entry.0, state.changed, state.version)).into_iter().map(
        |(before, after)| {
            RecordChange {
                client: after.client,
                entry: Some(ChangedEntry { id: after.entry, kind: after.kind, title: after.title.clone() }),
                by: after.changed.by,
                at: after.changed.at,
                is_new: before.is_none(),
                fields: before
                    .map_or_else(Vec::new, |before| differences(entry_fields(&before), entry_fields(&after))),
            }
        },
    ));
    Ok(changes)
}

/// Whether the row may have changed a record. The row of a new client does not have its number.
fn is_change(line: &AuditListRow) -> bool {
    let Some(row) = line.row.as_decision() else { return false };
    let is_writing = matches!(
        row.access_request.action,
        Action::EditClient | Action::ArchiveClient | Action::ReassignClient
    );
    is_writing && row.decision == Decision::Allowed
}

impl AuditLog {
    /// What the changes of records on a page of `read_audit` did, under the same permit.
    pub async fn read_changes(
        &self,
        permit: &Permit<ReadAudit>,
        lines: &[AuditListRow],
    ) -> Result<Vec<RecordChange>, DbError> {
        let changed = || lines.iter().filter(|line| is_change(line));
        let clients: BTreeSet<ClientId> = changed().filter_map(|line| line.row.client()).collect();
        let times: BTreeSet<UnixMillis> = changed().map(|line| line.row.at()).collect();
        if clients.is_empty() {
            return Ok(Vec::new());
        }
        let by = permit.by();
        self.db
            .read_report(move |tx| {
                let changes = changes(tx, &clients, &times)?;
                ensure_principal_unchanged::<DbError>(tx, by)?;
                Ok(changes)
            })
            .await
    }
}
