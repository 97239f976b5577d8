//! A firm for tests of client records: people, the policy, and permits as the portal gets them.

use crate::samples::NOON;
use chancery_domain::{
    AuditRow, AuditedDecision, AuditedEvent, ChainHead, ClientId, ContactDetails, DisputeDetails, EntryKind,
    EventOrigin, Identity, Person, PersonId, Principal, RequestId, Role, UnixMillis, WriterId,
};
use chancery_policy::{
    AuthzAction, AuthzRequest, ClientResource, CreateClient, Denial, FirmResource, ManageTeam,
    NewClientResource, Permit, Policy, ReadClient,
};
use chancery_store::{
    ClientError, ClientQuery, ClientRecord, EntryQuery, NewClient, NewEntry, RecordPart, RecordReader, Store,
    VerifiedIdentity, testing,
};
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::load().unwrap());

pub const NEWEST: EntryQuery = EntryQuery { kind: None, is_open: None, is_archived: false, after: None };

pub fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

pub async fn sign_in(store: &Store, name: &str, role: Role) -> Person {
    let identity = Identity { issuer: "https://id.example".to_owned(), subject: name.to_owned() };
    let email = format!("{name}@example.com").parse().unwrap();
    store.people.sign_in(VerifiedIdentity { identity, email, role, origin: origin(NOON) }).await.unwrap()
}

/// Maya and Tom are consultants, Ruth is a partner.
pub struct People {
    pub maya: Person,
    pub tom: Person,
    pub ruth: Person,
}

pub async fn people(store: &Store) -> People {
    People {
        maya: sign_in(store, "maya", Role::Consultant).await,
        tom: sign_in(store, "tom", Role::Consultant).await,
        ruth: sign_in(store, "ruth", Role::Partner).await,
    }
}

pub fn principal(person: &Person) -> Principal {
    Principal::Person { id: person.id, role: person.role }
}

pub fn authz_request(by: Principal, at: UnixMillis) -> AuthzRequest {
    AuthzRequest { by, at, request_id: RequestId::from_stored("req_1".to_owned()) }
}

pub fn ask<A: AuthzAction>(by: Principal, resource: A::Resource) -> Result<Permit<A>, Denial> {
    POLICY.decide::<A>(&authz_request(by, NOON), resource)
}

/// A permit for a client whose owner is known.
pub fn permit<A: AuthzAction<Resource = ClientResource>>(
    person: &Person,
    id: ClientId,
    owner: PersonId,
) -> Permit<A> {
    ask(principal(person), ClientResource { id, owner: Some(owner) }).unwrap()
}

pub fn firm_permit<A: AuthzAction<Resource = FirmResource>>(person: &Person) -> Permit<A> {
    ask(principal(person), FirmResource).unwrap()
}

pub fn new_client(name: &str) -> NewClient {
    NewClient {
        name: name.parse().unwrap(),
        details: ContactDetails::default(),
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
        dispute: DisputeDetails::default(),
        is_archived: false,
    }
}

pub async fn create(store: &Store, owner: &Person, name: &str) -> ClientId {
    create_whole(store, owner, new_client(name)).await
}

pub async fn create_whole(store: &Store, owner: &Person, new: NewClient) -> ClientId {
    let permit: Permit<CreateClient> = ask(principal(owner), NewClientResource(owner.id)).unwrap();
    store.clients.create_client(permit, new).await.unwrap()
}

/// Reads like the portal: the policy gets the owner from the store.
pub async fn read(store: &Store, by: &Person, id: ClientId) -> Result<Option<ClientRecord>, ClientError> {
    let owner = store.clients.owner_of(id).await?;
    let permit: Permit<ReadClient> = ask(principal(by), ClientResource { id, owner }).unwrap();
    store.clients.read_client(permit, &NEWEST).await
}

/// All parts, read to the end.
pub async fn read_parts<A: AuthzAction>(reader: &mut RecordReader<A>) -> Vec<RecordPart> {
    let mut parts = Vec::new();
    while let Some(page) = reader.next_page().await.unwrap() {
        parts.extend(page);
    }
    parts
}

pub async fn listed(store: &Store, by: &Person, query: &ClientQuery) -> (Vec<i64>, u64) {
    let page = store.clients.list_clients(firm_permit(by), query).await.unwrap();
    (page.lines.iter().map(|line| line.client.id.0).collect(), page.total.known())
}

pub fn search_for(text: &str) -> ClientQuery {
    ClientQuery { words: text.to_owned(), page: 1, ..ClientQuery::default() }
}

/// Reads every audit chain, a few rows at a time, checks it against its head, and returns the rows of each.
pub async fn verified_audit_chains(store: &Store) -> BTreeMap<WriterId, Vec<AuditRow>> {
    let mut chains = BTreeMap::new();
    let mut last = None;
    while let Some(writer) = store.audit_chains.next_audit_writer(last).await.unwrap() {
        assert!(last < Some(writer));
        last = Some(writer);
        let (mut head, mut rows) = (ChainHead::default(), Vec::new());
        loop {
            let page = store.audit_chains.audit_rows(writer, head.rows, 7).await.unwrap();
            if page.is_empty() {
                break;
            }
            for chained in page {
                assert_eq!(chained.position, head.rows);
                head = head.with_row(writer, &chained.row);
                assert_eq!(chained.hash, head.hash);
                rows.push(chained.row);
            }
        }
        assert_eq!(store.audit_chains.audit_chain_head(writer).await.unwrap(), Some(head));
        chains.insert(writer, rows);
    }
    chains
}

/// The rows of all audit chains, which are verified, in the order in which they were written.
async fn audit_rows(store: &Store) -> Vec<AuditRow> {
    let chains = verified_audit_chains(store).await;
    let rows = store.all_audit_rows().await.unwrap();
    assert_eq!(rows.len(), chains.values().map(Vec::len).sum::<usize>());
    rows
}

/// All decisions, except those that created the test's accounts and keys. Events are in `events`.
pub async fn decisions(store: &Store) -> Vec<AuditedDecision> {
    let rows = audit_rows(store).await;
    let decisions = rows.iter().filter_map(|row| row.as_decision().cloned());
    decisions.filter(|decision| decision.access_request.request_id.as_str() != testing::REQUEST_ID).collect()
}

pub async fn events(store: &Store) -> Vec<AuditedEvent> {
    let rows = audit_rows(store).await.into_iter();
    let event = |row| match row {
        AuditRow::Event(event) => Some(event),
        AuditRow::Decision(_) => None,
    };
    rows.filter_map(event).collect()
}

/// A permit for the command line to manage the team.
pub fn manage(at: UnixMillis) -> Permit<ManageTeam> {
    POLICY.decide(&authz_request(Principal::Operator, at), FirmResource).unwrap()
}

pub fn origin(at: UnixMillis) -> EventOrigin {
    EventOrigin {
        ip: Some("192.0.2.1".parse().unwrap()),
        at,
        request_id: RequestId::from_stored("req_2".to_owned()),
    }
}
