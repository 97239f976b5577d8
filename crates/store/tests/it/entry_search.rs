//! Conformance: a search finds the text of entries, and only in records that the policy lets a person read.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{
    POLICY, after_s, ask, authz_request, create_whole, decisions, firm_permit, listed, new_client, note,
    people, permit, principal, read, search_for, sign_in,
};
use crate::samples::NOON;
use chancery_domain::{
    Action, ClientId, ContactDetails, Entry, EntryId, EntryKind, Person, PersonId, Principal, RequestId,
    Role, UnixMillis, Version,
};
use chancery_policy::{
    ArchiveClient, AuthzRequest, ClientResource, EditClient, NewClientResource, Permit, ReadClient,
    ReassignClient,
};
use chancery_store::{
    ArchiveChange, ClientOrder, ClientQuery, EntryChange, EntryMatch, MAX_MATCHES_PER_CLIENT, NewClient,
    NewEntry, SaveOutcome, Store,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::sync::Arc;

fn entry(author: PersonId, at_s: i64, title: &str, text: &str) -> NewEntry {
    NewEntry { text: text.parse().unwrap(), ..note(author, after_s(at_s), title) }
}

/// The clients that a search finds, by id.
async fn found(store: &Store, by: &Person, search: &str) -> Vec<i64> {
    listed(store, by, &ClientQuery { order: ClientOrder::Id, ..search_for(search) }).await.0
}

/// Searches like the portal: the policy decides on each client of the page that has matches.
async fn matches(store: &Store, by: &Person, query: &ClientQuery) -> BTreeMap<i64, Vec<EntryMatch>> {
    let page = store.clients.list_clients(firm_permit(by), query).await.unwrap();
    let Some(search) = page.search else { return BTreeMap::new() };
    let permits: Vec<Permit<ReadClient>> = page
        .lines
        .iter()
        .filter(|line| search.has_matches_of(line.client.id))
        .map(|line| permit(by, line.client.id, line.client.owner.id))
        .collect();
    let found = store.clients.find_matches(&search, permits).await.unwrap();
    found.into_iter().map(|(client, found)| (client.0, found)).collect()
}

async fn snippets(store: &Store, by: &Person, search: &str) -> Vec<String> {
    let found = matches(store, by, &search_for(search)).await;
    found.values().flatten().map(EntryMatch::snippet).collect()
}

pub async fn search_finds_entries_by_their_current_text(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let maya = &people.maya;
    let imported = NewClient {
        entries: vec![
            entry(maya.id, 1, "Café visit", "They asked about the lease."),
            NewEntry { is_archived: true, ..entry(maya.id, 2, "Old", "The forgotten parrot.") },
        ],
        ..new_client("Harbour Lane Bakery")
    };
    let bakery = create_whole(&store, maya, imported).await;
    let other = create_whole(&store, &people.tom, new_client("Ostrander Freight")).await;
    let edit = || permit::<EditClient>(maya, bakery, maya.id);
    let dispute = NewEntry {
        kind: EntryKind::BillingDispute,
        ..entry(maya.id, 3, "Invoice 2026-0131", "The lease of the van was billed twice.")
    };
    let dispute = store.clients.add_entry(edit(), dispute).await.unwrap();
    for (search, expected) in [
        ("leas", vec![bakery.0]),
        ("CAFÉ", vec![bakery.0]),
        ("harbour lease", vec![bakery.0]),
        ("cafe billed", vec![bakery.0]),
        ("0131", vec![bakery.0]),
        ("parrot", vec![]),
        ("ease", vec![]),
        ("va", vec![]),
        ("van", vec![bakery.0]),
    ] {
        assert_eq!(found(&store, maya, search).await, expected, "{search}");
        assert_eq!(found(&store, &people.ruth, search).await, expected, "{search}");
        assert_eq!(found(&store, &people.tom, search).await, Vec::<i64>::new(), "{search}");
    }
    assert_eq!(
        snippets(&store, maya, "lease").await,
        ["The lease of the van was billed twice.", "They asked about the lease."],
        "newest first"
    );
    assert_eq!(snippets(&store, maya, "cafe").await, ["Café visit"], "only the title matches");
    assert_eq!(snippets(&store, maya, "harbour van").await, ["The lease of the van was billed twice."]);
    assert_eq!(snippets(&store, maya, "cafe billed").await.len(), 2, "the terms are in two entries");

    // An edit replaces the terms; those that another entry has stay.
    let change = EntryChange {
        entry: dispute.id,
        version: Version(1),
        title: "Settled".parse().unwrap(),
        text: "A credit for the truck.".parse().unwrap(),
        at: None,
        is_open: false,
        dispute: None,
    };
    store.clients.edit_entry(edit(), change).await.unwrap();
    assert_eq!(found(&store, maya, "van").await, Vec::<i64>::new());
    assert_eq!(found(&store, maya, "lease").await, [bakery.0]);
    assert_eq!(snippets(&store, maya, "truck").await, ["A credit for the truck."]);
    store.clients.set_entry_archived(edit(), dispute.id, ArchiveChange::ARCHIVE).await.unwrap();
    assert_eq!(found(&store, maya, "truck").await, Vec::<i64>::new());
    store.clients.set_entry_archived(edit(), dispute.id, ArchiveChange::RESTORE).await.unwrap();
    assert_eq!(found(&store, maya, "truck credit").await, [bakery.0]);

    // The index follows the client.
    let reassign = permit::<ReassignClient>(&people.ruth, bakery, maya.id);
    store.clients.reassign_client(reassign, people.tom.id, None).await.unwrap();
    assert_eq!(found(&store, maya, "truck").await, Vec::<i64>::new());
    assert_eq!(found(&store, &people.tom, "truck").await, [bakery.0]);
    let archive = permit::<ArchiveClient>(&people.tom, bakery, people.tom.id);
    store.clients.set_client_archived(archive, ArchiveChange::ARCHIVE).await.unwrap();
    assert_eq!(found(&store, &people.tom, "truck").await, Vec::<i64>::new());
    let archived = ClientQuery { is_archived: true, ..search_for("truck") };
    assert_eq!(matches(&store, &people.tom, &archived).await.len(), 1);
    assert_eq!(found(&store, &people.tom, "ostr").await, [other.0]);
}

pub async fn search_finds_any_part_of_a_telephone_or_client_number(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let with = |name: &str, telephone: &str| NewClient {
        details: ContactDetails { telephone: telephone.parse().unwrap(), ..ContactDetails::default() },
        ..new_client(name)
    };
    let bakery = create_whole(&store, &people.maya, with("Bakery", "+1 (617) 555-0142")).await;
    let freight = create_whole(&store, &people.maya, with("Freight", "020 7946 0321")).await;
    for (search, expected) in [
        ("555", vec![bakery.0]),
        ("617 555 0142", vec![bakery.0]),
        ("6175550142", vec![bakery.0]),
        ("55014", vec![bakery.0]),
        ("946-03", vec![freight.0]),
        ("002", vec![freight.0]),
        ("1002", vec![freight.0]),
        ("5556", vec![]),
    ] {
        assert_eq!(found(&store, &people.maya, search).await, expected, "{search}");
        assert_eq!(found(&store, &people.tom, search).await, Vec::<i64>::new(), "{search}");
    }
}

pub async fn one_audit_row_covers_a_search_and_its_excerpts(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let new = NewClient {
        entries: (0..10).map(|number| entry(people.maya.id, number, "Call", "About the lease.")).collect(),
        ..new_client("Harbour Lane Bakery")
    };
    let bakery = create_whole(&store, &people.maya, new).await;
    let before = decisions(&store).await.len();
    let found = snippets(&store, &people.maya, "lease").await;
    assert_eq!(found.len(), MAX_MATCHES_PER_CLIENT as usize);
    let decided = decisions(&store).await;
    assert_eq!(decided.len(), before + 1);
    assert!(decided.iter().all(|row| row.access_request.action != Action::ReadClient));
    let record = read(&store, &people.maya, bakery).await.unwrap().unwrap();
    assert_eq!(record.views[0].times, 1, "a match is not a view: {:?}", record.views);
}

pub async fn excerpts_need_a_permit_for_the_record_in_the_searchs_request(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (maya, ruth) = (&people.maya, &people.ruth);
    let with_lease = |name: &str| NewClient {
        entries: vec![entry(maya.id, 1, "Call", "About the lease.")],
        ..new_client(name)
    };
    let bakery = create_whole(&store, maya, with_lease("Harbour Lane Bakery")).await;
    let freight = create_whole(&store, &people.tom, with_lease("Ostrander Freight")).await;
    let page = store.clients.list_clients(firm_permit(maya), &search_for("lease")).await.unwrap();
    let search = page.search.unwrap();
    assert!(search.has_matches_of(bakery) && !search.has_matches_of(freight));

    let other_request = AuthzRequest {
        request_id: RequestId::from_stored("req_9".to_owned()),
        ..authz_request(principal(maya), NOON)
    };
    let resource = ClientResource { id: bakery, owner: Some(maya.id) };
    let of_other_request = POLICY.decide::<ReadClient>(&other_request, resource).unwrap();
    for (permits, what) in [
        (Vec::new(), "no permit"),
        (vec![of_other_request], "a permit of another request"),
        (vec![permit(ruth, bakery, maya.id)], "a permit of another person"),
    ] {
        assert!(store.clients.find_matches(&search, permits).await.unwrap().is_empty(), "{what}");
    }
    let of_mayas = ClientQuery { owner: Some(maya.id), ..search_for("lease") };
    let page = store.clients.list_clients(firm_permit(ruth), &of_mayas).await.unwrap();
    let permits = vec![permit(ruth, bakery, maya.id), permit(ruth, freight, people.tom.id)];
    let found = store.clients.find_matches(&page.search.unwrap(), permits).await.unwrap();
    assert_eq!(found.into_keys().collect::<Vec<_>>(), [bakery], "the search did not list the other");
    let permitted = permit(maya, bakery, maya.id);
    assert_eq!(store.clients.find_matches(&search, vec![permitted]).await.unwrap().len(), 1);

    // A permit for a former owner's client reads nothing.
    let stale = permit(maya, bakery, maya.id);
    let reassign = permit::<ReassignClient>(ruth, bakery, maya.id);
    store.clients.reassign_client(reassign, people.tom.id, None).await.unwrap();
    assert!(store.clients.find_matches(&search, vec![stale]).await.unwrap().is_empty());
}

/// Words as written, and as search terms.
const WORDS: [(&str, &str); 9] = [
    ("Café", "cafe"),
    ("cafeteria", "cafeteria"),
    ("Müller", "muller"),
    ("Straße", "strasse"),
    ("ΟΔΟΣ", "οδοσ"),
    ("法律", "法律"),
    ("harbour", "harbour"),
    ("va", "va"),
    ("555", "555"),
];

const SEARCHES: [&str; 10] =
    ["caf", "cafet", "muller", "strass harb", "οδοσ", "法", "harbour caf", "va", "va harbour", "55"];

fn written(text: &[usize]) -> String {
    text.iter().map(|word| WORDS[*word].0).collect::<Vec<_>>().join(" ")
}

fn has(words: &[usize], term: &str) -> bool {
    words.iter().any(|word| WORDS[*word].1.starts_with(term))
}

/// Terms shorter than three bytes are not looked up in entries.
fn entry_has(entry: &ExpectedEntry, term: &str) -> bool {
    term.len() >= 3 && !entry.is_archived && has(&entry.text, term)
}

#[derive(Clone, Debug)]
struct ExpectedEntry {
    id: EntryId,
    at: UnixMillis,
    text: Vec<usize>,
    is_archived: bool,
    version: Version,
}

#[derive(Clone, Debug)]
struct ExpectedClient {
    id: ClientId,
    owner: PersonId,
    is_archived: bool,
    name: Vec<usize>,
    entries: Vec<ExpectedEntry>,
}

impl ExpectedClient {
    fn details_have(&self, term: &str) -> bool {
        has(&self.name, term) || self.id.to_string().contains(term)
    }

    fn is_found_by(&self, terms: &[&str]) -> bool {
        let is_in_entries = |term: &str| self.entries.iter().any(|entry| entry_has(entry, term));
        terms.iter().copied().all(|term| self.details_have(term) || is_in_entries(term))
    }

    /// The newest entries that have all terms which the details do not have; if there is none, those with any term.
    fn matches(&self, terms: &[&str]) -> Vec<EntryId> {
        let terms: Vec<&str> = terms.iter().copied().filter(|term| term.len() >= 3).collect();
        let with_any = |entry: &&ExpectedEntry| terms.iter().any(|term| entry_has(entry, term));
        let with_all = |entry: &&ExpectedEntry| {
            terms.iter().all(|term| entry_has(entry, term) || self.details_have(term))
        };
        let mut found: Vec<&ExpectedEntry> = self.entries.iter().filter(with_any).filter(with_all).collect();
        if found.is_empty() {
            found = self.entries.iter().filter(with_any).collect();
        }
        found.sort_by_key(|entry| std::cmp::Reverse((entry.at, entry.id)));
        found.truncate(MAX_MATCHES_PER_CLIENT as usize);
        found.into_iter().map(|entry| entry.id).collect()
    }
}

#[derive(Clone, Debug)]
enum Change {
    Nothing,
    Archive(bool),
    MoveTo(usize),
    AddEntry(i64, Vec<usize>),
    EditEntry(usize, Vec<usize>),
    ArchiveEntry(usize, bool),
}

/// A random client: its owner, the words of its name, whether it is archived, its entries, and later changes.
type RandomCase = (usize, Vec<usize>, bool, Vec<(i64, Vec<usize>, bool)>, Vec<Change>);

fn random_clients() -> impl Strategy<Value = Vec<RandomCase>> {
    let text = || proptest::collection::vec(0..WORDS.len(), 1..5);
    let change = prop_oneof![
        1 => Just(Change::Nothing),
        1 => any::<bool>().prop_map(Change::Archive),
        1 => (0..3_usize).prop_map(Change::MoveTo),
        2 => (-50..50_i64, text()).prop_map(|(at, text)| Change::AddEntry(at, text)),
        2 => (0..6_usize, text()).prop_map(|(entry, text)| Change::EditEntry(entry, text)),
        2 => (0..6_usize, any::<bool>()).prop_map(|(entry, archive)| Change::ArchiveEntry(entry, archive)),
    ];
    let entries = proptest::collection::vec((-50..50_i64, text(), proptest::bool::weighted(0.2)), 0..6);
    let changes = proptest::collection::vec(change, 0..4);
    let client = (0..3_usize, text(), proptest::bool::weighted(0.2), entries, changes);
    proptest::collection::vec(client, 10..25)
}

fn expected_entry(entry: &Entry, text: Vec<usize>) -> ExpectedEntry {
    ExpectedEntry {
        id: entry.id,
        at: entry.at,
        text,
        is_archived: entry.archived_at.is_some(),
        version: entry.version,
    }
}

async fn apply(store: &Store, people: &[Person], client: &mut ExpectedClient, change: Change) {
    let partner = &people[2];
    let edit = || permit::<EditClient>(partner, client.id, client.owner);
    match change {
        Change::Nothing => {}
        Change::Archive(is_archived) => {
            let archive = permit::<ArchiveClient>(partner, client.id, client.owner);
            let change = ArchiveChange { is_archived, version: None };
            store.clients.set_client_archived(archive, change).await.unwrap();
            client.is_archived = is_archived;
        }
        Change::MoveTo(to) => {
            let reassign = permit::<ReassignClient>(partner, client.id, client.owner);
            store.clients.reassign_client(reassign, people[to].id, None).await.unwrap();
            client.owner = people[to].id;
        }
        Change::AddEntry(at, text) => {
            let new = entry(partner.id, at, "T", &written(&text));
            let added = store.clients.add_entry(edit(), new).await.unwrap();
            client.entries.push(expected_entry(&added, text));
        }
        Change::EditEntry(number, text) => {
            let Some(edited) = client.entries.get(number) else { return };
            let change = EntryChange {
                entry: edited.id,
                version: edited.version,
                title: "T".parse().unwrap(),
                text: written(&text).parse().unwrap(),
                at: None,
                is_open: false,
                dispute: None,
            };
            let SaveOutcome::Saved(saved) = store.clients.edit_entry(edit(), change).await.unwrap() else {
                panic!("entry {number} was not saved")
            };
            client.entries[number] = expected_entry(&saved, text);
        }
        Change::ArchiveEntry(number, is_archived) => {
            let Some(archived) = client.entries.get(number).cloned() else { return };
            let change = ArchiveChange { is_archived, version: None };
            let saved = store.clients.set_entry_archived(edit(), archived.id, change).await.unwrap();
            let SaveOutcome::Saved(saved) = saved else { panic!("entry {number} was not archived") };
            client.entries[number] = expected_entry(&saved, archived.text);
        }
    }
}

pub async fn search_of_entries_equals_a_filter_over_readable_records(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut runner = TestRunner::deterministic();
    let mut people = Vec::new();
    for (name, role) in [("maya", Role::Consultant), ("tom", Role::Consultant), ("ruth", Role::Partner)] {
        people.push(sign_in(&store, name, role).await);
    }
    let draws = random_clients().new_tree(&mut runner).unwrap().current();
    let new = draws.iter().map(|(owner, name, is_archived, entries, _)| {
        let owner = people[*owner].id;
        let entries = entries.iter().map(|(at, text, is_archived)| NewEntry {
            is_archived: *is_archived,
            ..entry(owner, *at, "T", &written(text))
        });
        let new =
            NewClient { entries: entries.collect(), is_archived: *is_archived, ..new_client(&written(name)) };
        (ask(Principal::Operator, NewClientResource(owner)).unwrap(), new)
    });
    let ids = store.client_imports.import_clients(new.collect(), &|_| {}).await.unwrap();
    let mut known: Vec<ExpectedClient> = Vec::new();
    // Entries are numbered in the order of the import.
    let mut next_entry = 1;
    for (id, (owner, name, is_archived, entries, changes)) in ids.into_iter().zip(draws) {
        let mut client =
            ExpectedClient { id, owner: people[owner].id, is_archived, name, entries: Vec::new() };
        for (at, text, is_archived) in entries {
            let (id, at, version) = (EntryId(next_entry), after_s(at), Version(1));
            client.entries.push(ExpectedEntry { id, at, text, is_archived, version });
            next_entry += 1;
        }
        for change in changes {
            apply(&store, &people, &mut client, change).await;
        }
        known.push(client);
    }
    for person in &people {
        for is_archived in [false, true] {
            for search in SEARCHES {
                let terms: Vec<&str> = search.split_whitespace().collect();
                let mut expected: Vec<&ExpectedClient> = known
                    .iter()
                    .filter(|client| {
                        let resource = ClientResource { id: client.id, owner: Some(client.owner) };
                        POLICY.is_allowed::<ReadClient>(principal(person), resource)
                    })
                    .filter(|client| client.is_archived == is_archived && client.is_found_by(&terms))
                    .collect();
                expected.sort_by_key(|client| client.id);
                let query = ClientQuery { is_archived, order: ClientOrder::Id, ..search_for(search) };
                let ids: Vec<i64> = expected.iter().map(|client| client.id.0).collect();
                let total = ids.len() as u64;
                assert_eq!(listed(&store, person, &query).await, (ids, total), "{}: {search}", person.email);
                let found = matches(&store, person, &query).await;
                for client in expected {
                    let ids: Vec<EntryId> =
                        found.get(&client.id.0).into_iter().flatten().map(|found| found.id).collect();
                    assert_eq!(ids, client.matches(&terms), "{}: {search}: {client:?}", person.email);
                }
            }
        }
    }
}
