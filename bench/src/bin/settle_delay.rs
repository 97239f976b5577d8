//! Measures how long settling waits while consultants read, search, edit and export large records in the same SQLite
//! file. A request here is what the portal does for it in the store. It fills the file, so use a new one; the second
//! argument is the size of the records in megabytes (200 unless told):
//!
//!     cargo run --release -p chancery-bench --bin settle_delay -- sqlite:/tmp/delay.db 200
#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to clean up")]

use chancery_bench::accounts::{create_account, create_key, usage_row};
use chancery_bench::people::create_person;
use chancery_domain::{
    AccountId, ClientId, Clock, ContactDetails, DisputeDetails, EntryId, EntryKind, KeyId,
    MAX_ENTRY_TEXT_CHARS, OsRandomness, Person, Principal, Randomness, RateLimits, RequestId, Role,
    SystemClock,
};
use chancery_policy::{
    AuthzAction, AuthzRequest, ClientResource, CreateClient, EditClient, FirmResource, NewClientResource,
    Permit, Policy,
};
use chancery_store::{
    ClientQuery, DatabaseUrl, EntryQuery, NewClient, NewEntry, RecordReader, Store, VersionQuery,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// For each kind of request.
const MEASURED: Duration = Duration::from_secs(5);
/// Requests that settle at a time.
const SETTLING: usize = 8;
/// Consultants who send their next request when they have the last reply.
const CONSULTANTS: usize = 4;
/// Large records, of which exports have them all.
const LARGE_CLIENTS: usize = 20;
/// Clients with one entry, which consultants list, search and hand over.
const SMALL_CLIENTS: usize = 2_000;
/// As the portal decides on them for an export.
const EXPORT_BATCH: u32 = 20;
/// Clients that a partner moves at once here. The portal allows more.
const CLIENTS_PER_MOVE: u32 = 25;
/// What a consultant's request may delay settling by.
const ALLOWED_MS: f64 = 50.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Nothing,
    Export,
    RecordAsJson,
    RecordPage,
    Versions,
    Search,
    AddEntry,
    /// By a partner.
    MoveClients,
}

const REQUESTS: [(Request, &str); 8] = [
    (Request::Nothing, "no requests"),
    (Request::Export, "export of all records"),
    (Request::RecordAsJson, "large record as JSON"),
    (Request::RecordPage, "page of a large record"),
    (Request::Versions, "versions of a long entry"),
    (Request::Search, "search in the list"),
    (Request::AddEntry, "new entry in a large record"),
    (Request::MoveClients, "25 clients to another owner"),
];

struct Firm {
    store: Arc<Store>,
    policy: Policy,
    consultant: Person,
    colleague: Person,
    partner: Person,
    /// The consultant's.
    large: Vec<(ClientId, EntryId)>,
    billed: (AccountId, KeyId),
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url: DatabaseUrl = arguments.next().unwrap().parse().unwrap();
    let megabytes = arguments.next().map_or(200, |size| size.parse().unwrap());
    let firm = Arc::new(Firm::create(&url, megabytes).await);
    println!(
        "{LARGE_CLIENTS} records of {} MB in all, {SMALL_CLIENTS} small ones; {SETTLING} requests settle at a time",
        megabytes
    );
    let (mut unloaded_max, mut is_exceeded) = (0.0, false);
    for (request, name) in REQUESTS {
        let (latencies, requests) = firm.measure(request).await;
        let ms = |latency: Duration| latency.as_secs_f64() * 1e3;
        let at = |per_mille: usize| ms(latencies[(latencies.len() - 1) * per_mille / 1000]);
        let max = at(1000);
        if request == Request::Nothing {
            unloaded_max = max;
        }
        let is_longer = max > unloaded_max + ALLOWED_MS;
        is_exceeded |= is_longer;
        println!(
            "{name:28}: settling takes {:6.2} ms (median), {:6.2} ms (99.9 %), {max:7.2} ms (longest){}; \
             {:6} settled, {requests:6} requests",
            at(500),
            at(999),
            if is_longer { ", MORE THAN 50 ms LONGER" } else { "" },
            latencies.len(),
        );
    }
    firm.store.close().await;
    if is_exceeded {
        std::process::exit(1);
    }
}

impl Firm {
    async fn create(url: &DatabaseUrl, megabytes: usize) -> Self {
        let store = Arc::new(Store::open(url).await.unwrap());
        let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
        let account = create_account(&store, &format!("Measured {}", OsRandomness.next_u64()), limits).await;
        let (key, _) = create_key(&store, account, "").await;
        let mut firm = Self {
            policy: Policy::load().unwrap(),
            consultant: create_person(&store, "ann@company.com", Role::Consultant).await,
            colleague: create_person(&store, "ben@company.com", Role::Consultant).await,
            partner: create_person(&store, "ruth@company.com", Role::Partner).await,
            large: Vec::new(),
            billed: (account, key),
            store,
        };
        // Four bytes a character.
        let text = "\u{1F4DC}".repeat(MAX_ENTRY_TEXT_CHARS);
        let entries = megabytes * 1_000_000 / text.len() / LARGE_CLIENTS;
        for number in 0..LARGE_CLIENTS {
            let client = firm.create_client(&format!("Large {number}"), &text, entries.max(1)).await;
            let page = firm.store.clients.read_client(firm.permit(client), &EntryQuery::default()).await;
            firm.large.push((client, page.unwrap().unwrap().entries[0].id));
        }
        for number in 0..SMALL_CLIENTS {
            firm.create_client(&format!("Small {number}"), "They asked about the lease.", 1).await;
        }
        firm
    }

    async fn create_client(&self, name: &str, text: &str, entries: usize) -> ClientId {
        let new = NewClient {
            name: name.parse().unwrap(),
            details: ContactDetails::default(),
            entries: (0..entries).map(|_| self.note(text)).collect(),
            is_archived: false,
        };
        let owner = NewClientResource(self.consultant.id);
        let permit = self.decide::<CreateClient>(&self.consultant, owner);
        self.store.clients.create_client(permit, new).await.unwrap()
    }

    fn note(&self, text: &str) -> NewEntry {
        NewEntry {
            kind: EntryKind::MeetingNote,
            title: "A note".parse().unwrap(),
            text: text.parse().unwrap(),
            at: SystemClock.now(),
            author: self.consultant.id,
            is_open: false,
            dispute: DisputeDetails::default(),
            is_archived: false,
        }
    }

    fn decide<A: AuthzAction>(&self, by: &Person, resource: A::Resource) -> Permit<A> {
        let at = SystemClock.now();
        let by = Principal::Person { id: by.id, role: by.role };
        let request_id = RequestId::new(at, &OsRandomness);
        self.policy.decide::<A>(&AuthzRequest { by, at, request_id }, resource).unwrap()
    }

    /// The consultant's permit for one of their own clients.
    fn permit<A: AuthzAction<Resource = ClientResource>>(&self, id: ClientId) -> Permit<A> {
        self.decide(&self.consultant, ClientResource { id, owner: Some(self.consultant.id) })
    }

    /// Settles for a while beside these requests. Returns the sorted times that settling took, and how many requests ended.
    async fn measure(self: &Arc<Self>, request: Request) -> (Vec<Duration>, usize) {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut consultants = tokio::task::JoinSet::new();
        for number in 0..CONSULTANTS {
            let (firm, is_over) = (Arc::clone(self), Arc::clone(&is_over));
            consultants.spawn(async move {
                let mut requests = 0;
                while request != Request::Nothing && !is_over.load(Ordering::Relaxed) {
                    firm.send(request, number + requests, &is_over).await;
                    requests += 1;
                }
                requests
            });
        }
        let end = SystemClock.monotonic() + MEASURED;
        let mut settling = tokio::task::JoinSet::new();
        for _ in 0..SETTLING {
            let firm = Arc::clone(self);
            settling.spawn(async move {
                let mut latencies = Vec::new();
                let mut began = SystemClock.monotonic();
                while began < end {
                    firm.store.ledger.settle(usage_row(firm.billed.0, firm.billed.1).into()).await.unwrap();
                    let ended = SystemClock.monotonic();
                    latencies.push(ended - began);
                    began = ended;
                }
                latencies
            });
        }
        let mut latencies = settling.join_all().await.concat();
        latencies.sort_unstable();
        is_over.store(true, Ordering::Relaxed);
        let requests: Vec<usize> = consultants.join_all().await;
        (latencies, requests.iter().sum())
    }

    async fn send(&self, request: Request, number: usize, is_over: &AtomicBool) {
        let clients = &self.store.clients;
        let (client, entry) = self.large[number % self.large.len()];
        match request {
            Request::Nothing => {}
            Request::Export => self.export(is_over).await,
            Request::RecordAsJson => {
                let reader = clients.open_record(self.permit(client)).await.unwrap().unwrap();
                read_to_end(reader, is_over).await;
            }
            Request::RecordPage => {
                drop(clients.read_client(self.permit(client), &EntryQuery::default()).await.unwrap());
            }
            Request::Versions => {
                drop(clients.entry_versions(self.permit(client), entry, VersionQuery::NEWEST).await.unwrap());
            }
            Request::Search => {
                let query =
                    ClientQuery { words: format!("small {number}"), page: 1, ..ClientQuery::default() };
                let permit = self.decide(&self.consultant, FirmResource);
                drop(clients.list_clients(permit, &query).await.unwrap());
            }
            Request::AddEntry => {
                let text = "\u{1F4DC}".repeat(MAX_ENTRY_TEXT_CHARS);
                let permit: Permit<EditClient> = self.permit(client);
                // A record may have 5,000 entries.
                drop(clients.add_entry(permit, self.note(&text)).await);
            }
            Request::MoveClients => self.move_clients().await,
        }
    }

    async fn export(&self, is_over: &AtomicBool) {
        let clients = &self.store.clients;
        let listing = self.decide(&self.consultant, FirmResource);
        let mut after = None;
        while !is_over.load(Ordering::Relaxed) {
            let found = clients.client_owners(&listing, None, after, EXPORT_BATCH).await.unwrap();
            let Some(last) = found.last() else { return };
            after = Some(last.client);
            let permits = found.iter().map(|found| self.permit(found.client)).collect();
            read_to_end(clients.open_records(permits).await.unwrap(), is_over).await;
        }
    }

    /// Back and forth between the two consultants. Others may have moved them first.
    async fn move_clients(&self) {
        let clients = &self.store.clients;
        let mut people = [self.consultant.id, self.colleague.id];
        for _ in 0..2 {
            let listing = self.decide(&self.partner, FirmResource);
            let found =
                clients.client_owners(&listing, Some(people[0]), None, CLIENTS_PER_MOVE).await.unwrap();
            let permit = |id| self.decide(&self.partner, ClientResource { id, owner: Some(people[0]) });
            let permits = found.iter().map(|found| permit(found.client)).collect();
            drop(clients.reassign_clients(BTreeMap::from([(people[1], permits)])).await);
            people.swap(0, 1);
        }
    }
}

async fn read_to_end<A: AuthzAction>(mut reader: RecordReader<A>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) && reader.next_page().await.unwrap().is_some() {}
}
