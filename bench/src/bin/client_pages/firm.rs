//! A firm that grows: two consultants and a partner, and as many clients as are wanted, each with eight entries.

use chancery_bench::people::{SignedIn, arrive, sign_in};
use chancery_domain::{
    Asker, ClientId, Clock, ContactFacts, EntryKind, OsRandomness, Person, RequestId, Role, SystemClock,
    UnixMillis,
};
use chancery_policy::{Asking, NewClientFor, Policy};
use chancery_store::{NewClient, NewEntry, Store};
use std::sync::Arc;

/// Brought in at once.
const CLIENTS_AT_ONCE: u64 = 5_000;
const ENTRIES: i64 = 8;
const HOUR_MS: i64 = 3_600_000;

pub struct Firm {
    store: Arc<Store>,
    policy: Policy,
    owners: [Person; 2],
    pub partner: SignedIn,
    pub consultant: SignedIn,
    /// The first consultant's first client, which is there at every size.
    pub record: ClientId,
    /// The other consultant's first client, which the first may not read.
    pub record_of_another: ClientId,
    clients: u64,
}

impl Firm {
    pub async fn open(url: &str) -> Self {
        let store = Arc::new(Store::open(&url.parse().unwrap()).await.unwrap());
        let maya = arrive(&store, "maya@example.com", Role::Consultant).await;
        let omar = arrive(&store, "omar@example.com", Role::Consultant).await;
        let ruth = arrive(&store, "ruth@example.com", Role::Partner).await;
        let (partner, consultant) = (sign_in(&store, &ruth).await, sign_in(&store, &maya).await);
        let owners = [maya, omar];
        let policy = Policy::load().unwrap();
        let (record, record_of_another) = (ClientId(0), ClientId(0));
        Self { store, policy, owners, partner, consultant, record, record_of_another, clients: 0 }
    }

    pub async fn grow_to(&mut self, size: u64) {
        while self.clients < size {
            let until = size.min(self.clients + CLIENTS_AT_ONCE);
            let at = SystemClock.now();
            let asking = Asking { by: Asker::Operator, at, request_id: RequestId::new(at, &OsRandomness) };
            let permitted = (self.clients..until).map(|number| {
                let owner = self.owners[(number % 2) as usize].id;
                let permit = self.policy.decide(&asking, NewClientFor(owner)).unwrap();
                (permit, client(number, owner, at))
            });
            let ids = self.store.client_imports.import_clients(permitted.collect(), &|_| {}).await.unwrap();
            if self.clients == 0 {
                (self.record, self.record_of_another) = (ids[0], ids[1]);
            }
            self.clients = until;
        }
    }

    pub async fn close(&self) {
        self.store.close().await;
    }
}

/// No two are alike, and one of them is a harbourmaster.
fn client(number: u64, owner: chancery_domain::PersonId, now: UnixMillis) -> NewClient {
    const TRADES: [&str; 7] =
        ["Bakery", "Joinery", "Lettings", "Brewery", "Dental Group", "Freight", "Optical"];
    let trade = if number == 7 { "Harbourmaster" } else { TRADES[(number % 7) as usize] };
    let name = format!("Client {number} {trade}");
    let facts = ContactFacts {
        contact: format!("Contact {}", number % 1_000).parse().unwrap(),
        email: format!("office@client{number}.example").parse().unwrap(),
        telephone: "+1 617 555 0142".parse().unwrap(),
        address: format!("{} Harbour Lane\nBoston", number % 200 + 1).parse().unwrap(),
        since: None,
    };
    let entry = |place: i64| {
        let kind = EntryKind::ALL[(place % 3) as usize];
        NewEntry {
            kind,
            title: format!("Entry {place} of client {number}").parse().unwrap(),
            text: "Went through the figures of the last quarter. The margin is where it was expected to be, and the two open \
                   questions are with the bookkeeper.\n\n- Send the estimate before the 20th.\n- Ask about the second van."
                .parse()
                .unwrap(),
            at: UnixMillis(now.0 - (number as i64 % 5_000 * ENTRIES + place) * HOUR_MS),
            author: owner,
            is_open: kind.can_be_open() && place == 1,
            is_archived: false,
        }
    };
    NewClient {
        name: name.parse().unwrap(),
        facts,
        entries: (0..ENTRIES).map(entry).collect(),
        is_archived: false,
    }
}
