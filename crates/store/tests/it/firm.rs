//! A firm to test client records with: people, the policy, and permits as the portal gets them.

use crate::samples::NOON;
use chancery_domain::{
    Asker, AuditRow, AuditedDecision, AuditedEvent, ChainHead, ClientId, ContactFacts, EntryKind,
    EventOrigin, Identity, Person, PersonId, RequestId, Role, UnixMillis, WriterId,
};
use chancery_policy::{
    Act, Asking, ClientInQuestion, CreateClient, Denial, ManageTeam, NewClientFor, Permit, Policy,
    ReadClient, TheFirm,
};
use chancery_store::{
    Arrival, ClientError, ClientQuery, ClientRecord, EntriesWanted, NewClient, NewEntry, Store, testing,
};
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::load().unwrap());

pub const NEWEST: EntriesWanted = EntriesWanted::Page { kind: None, is_archived: false, after: None };

pub fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

pub async fn arrive(store: &Store, name: &str, role: Role) -> Person {
    let identity = Identity { issuer: "https://id.example".to_owned(), subject: name.to_owned() };
    let email = format!("{name}@example.com").parse().unwrap();
    store.people.arrive(Arrival { identity, email, role, origin: origin(NOON) }).await.unwrap()
}

/// Maya and Tom, who are consultants, and Ruth, a partner.
pub struct People {
    pub maya: Person,
    pub tom: Person,
    pub ruth: Person,
}

pub async fn people(store: &Store) -> People {
    People {
        maya: arrive(store, "maya", Role::Consultant).await,
        tom: arrive(store, "tom", Role::Consultant).await,
        ruth: arrive(store, "ruth", Role::Partner).await,
    }
}

pub fn asker(person: &Person) -> Asker {
    Asker::Person { id: person.id, role: person.role }
}

pub fn asking(by: Asker, at: UnixMillis) -> Asking {
    Asking { by, at, request_id: RequestId::from_stored("req_1".to_owned()) }
}

pub fn ask<A: Act>(by: Asker, about: A::About) -> Result<Permit<A>, Denial> {
    POLICY.decide::<A>(&asking(by, NOON), about)
}

/// For a client whose owner is known.
pub fn permit<A: Act<About = ClientInQuestion>>(person: &Person, id: ClientId, owner: PersonId) -> Permit<A> {
    ask(asker(person), ClientInQuestion { id, owner: Some(owner) }).unwrap()
}

pub fn firm_permit<A: Act<About = TheFirm>>(person: &Person) -> Permit<A> {
    ask(asker(person), TheFirm).unwrap()
}

pub fn new_client(name: &str) -> NewClient {
    NewClient {
        name: name.parse().unwrap(),
        facts: ContactFacts::default(),
        entries: Vec::new(),
        is_archived: false,
    }
}

pub fn note(author: PersonId, at: UnixMillis, title: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::MeetingNote,
        title: title.parse().unwrap(),
        text: "They asked about the lease.".parse().unwrap(),
        at,
        author,
        is_open: false,
        is_archived: false,
    }
}

pub async fn create(store: &Store, owner: &Person, name: &str) -> ClientId {
    create_whole(store, owner, new_client(name)).await
}

pub async fn create_whole(store: &Store, owner: &Person, new: NewClient) -> ClientId {
    let permit: Permit<CreateClient> = ask(asker(owner), NewClientFor(owner.id)).unwrap();
    store.clients.create_client(permit, new).await.unwrap()
}

/// Asks like the portal: for the owner as the store has it.
pub async fn read(store: &Store, by: &Person, id: ClientId) -> Result<Option<ClientRecord>, ClientError> {
    let owner = store.clients.owner_of(id).await?;
    let permit: Permit<ReadClient> = ask(asker(by), ClientInQuestion { id, owner }).unwrap();
    store.clients.read_client(permit, &NEWEST).await
}

pub async fn listed(store: &Store, by: &Person, query: &ClientQuery) -> (Vec<i64>, u64) {
    let page = store.clients.list_clients(firm_permit(by), query).await.unwrap();
    (page.lines.iter().map(|line| line.client.id.0).collect(), page.total)
}

pub fn words(words: &str) -> ClientQuery {
    ClientQuery { words: words.to_owned(), page: 1, ..ClientQuery::default() }
}

/// Reads every chain of the audit, a few rows at a time, and holds it against its end; gives the rows of each.
pub async fn sound_audit(store: &Store) -> BTreeMap<WriterId, Vec<AuditRow>> {
    let mut chains = BTreeMap::new();
    let mut last = None;
    while let Some(writer) = store.audit_chains.audit_writer_after(last).await.unwrap() {
        assert!(last < Some(writer));
        last = Some(writer);
        let (mut head, mut rows) = (ChainHead::default(), Vec::new());
        loop {
            let page = store.audit_chains.audit_rows(writer, head.rows, 7).await.unwrap();
            if page.is_empty() {
                break;
            }
            for chained in page {
                assert_eq!(chained.place, head.rows);
                head = head.followed_by(writer, &chained.row);
                assert_eq!(chained.hash, head.hash);
                rows.push(chained.row);
            }
        }
        assert_eq!(store.audit_chains.audit_chain_head(writer).await.unwrap(), Some(head));
        chains.insert(writer, rows);
    }
    chains
}

/// All decisions of a store that nobody else has written to, but for those that gave the test its accounts and keys. What
/// happened besides is `events`.
pub async fn decisions(store: &Store) -> Vec<AuditedDecision> {
    let rows = sound_audit(store).await.into_values().flatten();
    let decisions = rows.filter_map(|row| row.as_decision().cloned());
    decisions.filter(|decision| decision.asked.request_id.as_str() != testing::REQUEST_ID).collect()
}

pub async fn events(store: &Store) -> Vec<AuditedEvent> {
    let rows = sound_audit(store).await.into_values().flatten();
    let event = |row| match row {
        AuditRow::Event(event) => Some(event),
        AuditRow::Decision(_) => None,
    };
    rows.filter_map(event).collect()
}

/// The command line changes something about the team.
pub fn manage(at: UnixMillis) -> Permit<ManageTeam> {
    POLICY.decide(&asking(Asker::Operator, at), TheFirm).unwrap()
}

pub fn origin(at: UnixMillis) -> EventOrigin {
    EventOrigin {
        ip: Some("192.0.2.1".parse().unwrap()),
        at,
        request_id: RequestId::from_stored("req_2".to_owned()),
    }
}
