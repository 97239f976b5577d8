//! A firm of any size: two consultants, a partner, and a given number of clients with eight entries each.

use crate::people::{SignedIn, create_person, sign_in};
use chancery_domain::{
    ClientId, Clock, ContactDetails, DisputeDetails, EntryKind, OsRandomness, Person, Principal, RequestId,
    Role, SystemClock, UnixMillis,
};
use chancery_policy::{AuthzRequest, NewClientResource, Policy};
use chancery_store::{NewClient, NewEntry, Store};
use std::sync::Arc;

/// Batch size of imports.
const CLIENTS_AT_ONCE: u64 = 5_000;
const ENTRIES: i64 = 8;
const HOUR_MS: i64 = 3_600_000;

pub struct Firm {
    store: Arc<Store>,
    policy: Policy,
    owners: [Person; 2],
    pub partner: SignedIn,
    pub consultant: SignedIn,
    /// The first consultant's first client, which exists at every size.
    pub record: ClientId,
    /// The other consultant's first client, which the first may not read.
    pub record_of_another: ClientId,
    clients: u64,
}

impl Firm {
    pub async fn open(url: &str) -> Self {
        let store = Arc::new(Store::open(&url.parse().unwrap()).await.unwrap());
        let maya = create_person(&store, "maya@example.com", Role::Consultant).await;
        let omar = create_person(&store, "omar@example.com", Role::Consultant).await;
        let ruth = create_person(&store, "ruth@example.com", Role::Partner).await;
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
            let authz_request =
                AuthzRequest { by: Principal::Operator, at, request_id: RequestId::new(at, &OsRandomness) };
            let permitted = (self.clients..until).map(|number| {
                let owner = self.owners[(number % 2) as usize].id;
                let permit = self.policy.decide(&authz_request, NewClientResource(owner)).unwrap();
                (permit, client(number, owner, at))
            });
            let ids = self.store.client_imports.import_clients(permitted.collect(), &|_| {}).await.unwrap();
            if self.clients == 0 {
                (self.record, self.record_of_another) = (ids[0], ids[1]);
            }
            self.clients = until;
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub async fn close(&self) {
        self.store.close().await;
    }
}

/// No two are alike. One of them is a harbourmaster, and one has an entry about a lighthouse.
fn client(number: u64, owner: chancery_domain::PersonId, now: UnixMillis) -> NewClient {
    const TRADES: [&str; 7] =
        ["Bakery", "Joinery", "Lettings", "Brewery", "Dental Group", "Freight", "Optical"];
    let trade = if number == 7 { "Harbourmaster" } else { TRADES[(number % 7) as usize] };
    let name = format!("Client {number} {trade}");
    let details = ContactDetails {
        contact: format!("Contact {}", number % 1_000).parse().unwrap(),
        email: format!("office@client{number}.example").parse().unwrap(),
        telephone: "+1 617 555 0142".parse().unwrap(),
        address: format!("{} Harbour Lane\nBoston", number % 200 + 1).parse().unwrap(),
        since: None,
    };
    let entry = |index: i64| {
        let kind = EntryKind::ALL[(index % 3) as usize];
        let subject = if (number, index) == (8, 0) { "Lighthouse" } else { "Entry" };
        NewEntry {
            kind,
            title: format!("{subject} {index} of client {number}").parse().unwrap(),
            text: "Went through the figures of the last quarter. The margin is where it was expected to be, and the two open \
                   questions are with the bookkeeper.\n\n- Send the estimate before the 20th.\n- Ask about the second van."
                .parse()
                .unwrap(),
            at: UnixMillis(now.0 - (number as i64 % 5_000 * ENTRIES + index) * HOUR_MS),
            author: owner,
            is_open: kind.can_be_open() && index == 1,
            dispute: DisputeDetails::default(),
            is_archived: false,
        }
    };
    NewClient {
        name: name.parse().unwrap(),
        details,
        entries: (0..ENTRIES).map(entry).collect(),
        is_archived: false,
    }
}
