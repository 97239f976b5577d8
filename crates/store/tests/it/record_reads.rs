//! Conformance: the decision to read a record is committed before the record is read, which is read in bounded pages and
//! only while its owner is the one that the policy saw.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{
    NEWEST, People, after_s, ask, create, create_whole, decisions, new_client, note, people, permit,
    principal, read_parts,
};
use crate::samples::NOON;
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, EntryText, MAX_ENTRY_TEXT_CHARS, Person};
use chancery_policy::{AuthzAction, ClientResource, EditClient, ExportClient, ReadClient};
use chancery_store::{
    ArchiveChange, ClientError, EntryChange, MAX_RECORD_PAGE_BYTES, MAX_RECORD_PAGE_ENTRIES, NewClient,
    NewEntry, RecordReader, Store, VersionQuery,
};
use std::collections::HashSet;
use std::sync::Arc;

/// An entry with as many bytes as one may have.
fn longest_text() -> EntryText {
    "\u{1F4DC}".repeat(MAX_ENTRY_TEXT_CHARS).parse().unwrap()
}

/// A client of Maya's with short and long entries of all kinds. Every tenth is archived.
async fn long_record(store: &Store, people: &People, short: i64, long: i64) -> ClientId {
    let text = longest_text();
    let entry = |number: i64| {
        let new = note(people.maya.id, after_s(number * 7 % 50), &format!("Number {number}"));
        NewEntry {
            kind: EntryKind::ALL[number as usize % 3],
            is_archived: number % 10 == 0,
            text: if number < short { new.text } else { text.clone() },
            ..new
        }
    };
    let entries = (0..short + long).map(entry).collect();
    create_whole(store, &people.maya, NewClient { entries, ..new_client("Long") }).await
}

fn bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| (entry.title.as_str().len() + entry.text.as_str().len()) as u64).sum()
}

/// All entries, after checking the bounds of every page.
async fn bounded_pages<A: AuthzAction>(reader: &mut RecordReader<A>) -> (Vec<Entry>, usize) {
    let (mut entries, mut pages) = (Vec::new(), 0);
    while let Some(parts) = reader.next_page().await.unwrap() {
        let page: Vec<Entry> = parts.into_iter().flat_map(|part| part.entries).collect();
        assert!(page.len() <= MAX_RECORD_PAGE_ENTRIES, "{} entries", page.len());
        assert!(bytes(&page) <= MAX_RECORD_PAGE_BYTES, "{} bytes", bytes(&page));
        entries.extend(page);
        pages += 1;
    }
    (entries, pages)
}

pub async fn record_pages_are_bounded_and_complete(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = long_record(&store, &people, 250, 30).await;

    let read = permit::<ReadClient>(&people.maya, client, people.maya.id);
    let mut reader = store.clients.open_record(read).await.unwrap().unwrap();
    let (entries, pages) = bounded_pages(&mut reader).await;
    assert!(pages >= 3, "{pages}: 2.2 MB of long entries, and 225 short ones");
    assert_eq!(entries.len(), 252, "all but the archived ones");
    assert!(entries.iter().all(|entry| entry.archived_at.is_none()));
    let kind = |entry: &Entry| EntryKind::ALL.iter().position(|kind| *kind == entry.kind);
    assert!(entries.is_sorted_by_key(|entry| (kind(entry), std::cmp::Reverse((entry.at, entry.id)))));

    let export = permit::<ExportClient>(&people.maya, client, people.maya.id);
    let mut reader = store.clients.open_records(vec![export]).await.unwrap();
    let (entries, _) = bounded_pages(&mut reader).await;
    assert_eq!(entries.len(), 280, "archived ones too");
    assert!(entries.is_sorted_by_key(|entry| (entry.at, entry.id)));
}

pub async fn small_record_is_one_page_under_the_permit_that_holds(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (maya, tom) = (people.maya.id, people.tom.id);
    let open = async |client: ClientId| {
        store.clients.open_record(permit(&people.maya, client, maya)).await.unwrap().unwrap()
    };
    let small = long_record(&store, &people, 12, 0).await;
    let mut reader = open(small).await;
    let parts = reader.next_page().await.unwrap().unwrap();
    assert_eq!((parts.len(), parts[0].is_first, parts[0].is_last), (1, true, true));
    let kind = |entry: &Entry| EntryKind::ALL.iter().position(|kind| *kind == entry.kind);
    let entries = &parts[0].entries;
    assert_eq!(entries.len(), 10, "all but the archived ones");
    assert!(entries.is_sorted_by_key(|entry| (kind(entry), std::cmp::Reverse((entry.at, entry.id)))));
    assert_eq!(reader.next_page().await.unwrap(), None);

    let without_entries = create(&store, &people.maya, "Empty").await;
    let parts = read_parts(&mut open(without_entries).await).await;
    assert_eq!((parts.len(), parts[0].entries.len(), parts[0].is_last), (1, 0, true));

    // Few entries, but too many bytes for one page.
    let heavy = long_record(&store, &people, 0, 20).await;
    let (entries, pages) = bounded_pages(&mut open(heavy).await).await;
    assert_eq!((entries.len(), pages), (18, 2));

    for client in [small, without_entries] {
        let mut unread = open(client).await;
        store.clients.reassign_client(permit(&people.ruth, client, maya), tom, None).await.unwrap();
        let rejected = unread.next_page().await.unwrap_err();
        assert!(matches!(rejected, ClientError::OwnerChanged(changed) if changed == client), "{rejected}");
    }
}

pub async fn records_of_many_clients_come_whole_and_in_order(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let mut clients = Vec::new();
    for number in 0..60_i64 {
        let entries = (0..number % 4).map(|entry| note(people.maya.id, after_s(entry), "A note")).collect();
        let new = NewClient { entries, ..new_client(&format!("Client {number}")) };
        clients.push((create_whole(&store, &people.maya, new).await, number % 4));
        if number == 20 {
            clients.push((long_record(&store, &people, 120, 20).await, 140));
        }
    }
    let before = decisions(&store).await.len();
    let permits =
        clients.iter().map(|(client, _)| permit::<ExportClient>(&people.maya, *client, people.maya.id));
    let mut reader = store.clients.open_records(permits.collect()).await.unwrap();
    assert_eq!(decisions(&store).await.len(), before + 61, "decided before any record is read");
    let mut found: Vec<(ClientId, i64)> = Vec::new();
    for part in read_parts(&mut reader).await {
        if part.is_first {
            found.push((part.client.id, 0));
        }
        let (client, entries) = found.last_mut().unwrap();
        assert_eq!(*client, part.client.id);
        *entries += part.entries.len() as i64;
    }
    assert_eq!(found, clients);
    assert_eq!(reader.next_page().await.unwrap(), None);
}

/// The record's tables cannot be read. That the decision is on record shows that its transaction does not read them.
pub async fn page_is_recorded_and_read_or_neither_and_long_reads_are_recorded_first(
    database: Arc<AnyDatabase>,
) {
    let store = database.open().await;
    let people = people(&store).await;
    let (client, maya) = (create(&store, &people.maya, "Harbour Lane Bakery").await, people.maya.id);
    let edit = permit(&people.maya, client, maya);
    let entry = store.clients.add_entry(edit, note(maya, NOON, "A note")).await.unwrap().id;
    let before = decisions(&store).await.len();
    database.raw("ALTER TABLE entries RENAME TO entries_away").await.unwrap();
    let read = || permit::<ReadClient>(&people.maya, client, maya);
    store.clients.read_client(read(), &NEWEST).await.unwrap_err();
    store.clients.read_for_draft(permit(&people.maya, client, maya), &[entry]).await.unwrap_err();
    let mut reader = store.clients.open_record(read()).await.unwrap().unwrap();
    reader.next_page().await.unwrap_err();
    let mut reader = store.clients.open_records(vec![permit(&people.maya, client, maya)]).await.unwrap();
    reader.next_page().await.unwrap_err();
    assert_eq!(decisions(&store).await.len(), before + 2);
    database.raw("ALTER TABLE entries_away RENAME TO entries").await.unwrap();
    database.raw("ALTER TABLE entry_versions RENAME TO entry_versions_away").await.unwrap();
    database.raw("ALTER TABLE client_versions RENAME TO client_versions_away").await.unwrap();
    store.clients.entry_versions(read(), entry, VersionQuery::NEWEST).await.unwrap_err();
    store.clients.client_versions(read(), VersionQuery::NEWEST).await.unwrap_err();
    assert_eq!(decisions(&store).await.len(), before + 2);
}

pub async fn client_reassigned_between_decision_and_page_is_not_shown(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (maya, tom) = (people.maya.id, people.tom.id);
    let long = long_record(&store, &people, 150, 0).await;
    let short = create(&store, &people.maya, "Short").await;
    let open =
        async |person: &Person| store.clients.open_record(permit(person, long, maya)).await.unwrap().unwrap();
    let (mut unread, mut half_read) = (open(&people.maya).await, open(&people.maya).await);
    let mut partners = open(&people.ruth).await;
    let exports = [short, long].map(|client| permit::<ExportClient>(&people.maya, client, maya));
    let mut export = store.clients.open_records(exports.into()).await.unwrap();
    let mut shown: Vec<EntryId> = Vec::new();
    for reader in [&mut half_read, &mut partners] {
        shown = reader.next_page().await.unwrap().unwrap()[0].entries.iter().map(|entry| entry.id).collect();
    }
    let reassign = permit(&people.ruth, long, maya);
    store.clients.reassign_client(reassign, tom, None).await.unwrap();

    let is_owner_changed =
        |rejected| matches!(rejected, Err(ClientError::OwnerChanged(client)) if client == long);
    for reader in [&mut unread, &mut half_read, &mut partners] {
        assert!(is_owner_changed(reader.next_page().await.map(|_| ())));
        let outdated = ask(principal(&people.maya), ClientResource { id: long, owner: Some(maya) }).unwrap();
        assert!(is_owner_changed(store.clients.renew_permit(outdated, reader).await));
        assert!(is_owner_changed(reader.next_page().await.map(|_| ())));
    }
    assert_eq!(export.next_page().await.unwrap().unwrap()[0].client.id, short);
    assert!(is_owner_changed(export.next_page().await.map(|_| ())));
    assert!(!export.leave_out(long), "nothing of it was read");
    assert_eq!(export.next_page().await.unwrap(), None);
    assert!(half_read.leave_out(long), "a part of it was read");

    // The partner may go on under a new decision, where the last page ended.
    let before = decisions(&store).await.len();
    store.clients.renew_permit(permit(&people.ruth, long, tom), &mut partners).await.unwrap();
    assert_eq!(decisions(&store).await.len(), before + 1);
    let rest = read_parts(&mut partners).await;
    assert!(rest.iter().all(|part| !part.is_first && part.client.owner.id == tom));
    shown.extend(rest.iter().flat_map(|part| &part.entries).map(|entry| entry.id));
    assert_eq!((shown.len(), shown.iter().collect::<HashSet<_>>().len()), (135, 135));
}

pub async fn entry_that_changes_between_pages_is_read_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = long_record(&store, &people, 250, 0).await;
    let read = permit(&people.maya, client, people.maya.id);
    let mut reader = store.clients.open_record(read).await.unwrap().unwrap();
    let first = reader.next_page().await.unwrap().unwrap();
    let edit = || permit::<EditClient>(&people.maya, client, people.maya.id);
    let (shown, mut rest) = (&first[0].entries, Vec::new());
    // One that was shown becomes the oldest, one that was not becomes the newest, and one is archived.
    let record = store.clients.open_record(permit(&people.maya, client, people.maya.id)).await;
    let all: Vec<Entry> =
        read_parts(&mut record.unwrap().unwrap()).await.into_iter().flat_map(|part| part.entries).collect();
    for (entry, at) in [(&shown[0], after_s(-999)), (&all[224], after_s(999))] {
        let change = EntryChange {
            entry: entry.id,
            version: entry.version,
            title: "Moved".parse().unwrap(),
            text: longest_text(),
            at: Some(at),
            is_open: entry.is_open,
            dispute: None,
        };
        store.clients.edit_entry(edit(), change).await.unwrap();
    }
    store.clients.set_entry_archived(edit(), all[200].id, ArchiveChange::ARCHIVE).await.unwrap();
    store.clients.add_entry(edit(), note(people.maya.id, after_s(-2000), "New")).await.unwrap();
    for part in read_parts(&mut reader).await {
        rest.extend(part.entries);
    }
    let ids = |entries: &[Entry]| entries.iter().map(|entry| entry.id).collect::<Vec<_>>();
    assert_eq!([ids(shown), ids(&rest)].concat(), ids(&all));
    assert_eq!(rest.last().unwrap().title.as_str(), "Moved");
}
