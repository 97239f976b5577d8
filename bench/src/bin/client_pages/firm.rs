//! A firm that grows: two consultants and a partner, and as many clients as are wanted, each with eight entries.

use chancery_domain::{
    Asker, ClientId, Clock, ContactFacts, EntryKind, Identity, OsRandomness, Person, RequestId, Role,
    SecretToken, SystemClock, UnixMillis,
};
use chancery_policy::{Asking, NewClientFor, Policy};
use chancery_store::{Arrival, NewClient, NewEntry, NewSession, Store};
use sqlx::{Connection, Executor, PgConnection};
use std::sync::Arc;

/// Brought in at once.
const CLIENTS_AT_ONCE: u64 = 5_000;
const ENTRIES: i64 = 8;
const HOUR_MS: i64 = 3_600_000;

/// Somebody with a session, as their browser shows it.
#[derive(Clone)]
pub struct SignedIn {
    pub cookie: String,
}

pub struct Firm {
    store: Arc<dyn Store>,
    policy: Policy,
    owners: [Person; 2],
    pub partner: SignedIn,
    pub consultant: SignedIn,
    /// The first consultant's first client, which is there at every size.
    pub record: ClientId,
    clients: u64,
}

impl Firm {
    pub async fn open(url: &str) -> Self {
        let store = chancery_store::open(&url.parse().unwrap()).await.unwrap();
        let maya = arrive(&*store, "maya@example.com", Role::Consultant).await;
        let omar = arrive(&*store, "omar@example.com", Role::Consultant).await;
        let ruth = arrive(&*store, "ruth@example.com", Role::Partner).await;
        let (partner, consultant) = (sign_in(&*store, &ruth).await, sign_in(&*store, &maya).await);
        let owners = [maya, omar];
        let policy = Policy::load().unwrap();
        Self { store, policy, owners, partner, consultant, record: ClientId(0), clients: 0 }
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
            let ids = self.store.import_clients(permitted.collect(), &|_| {}).await.unwrap();
            if self.clients == 0 {
                self.record = ids[0];
            }
            self.clients = until;
        }
    }

    pub async fn close(&self) {
        self.store.close().await;
    }
}

async fn arrive(store: &dyn Store, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: "http://127.0.0.1:8082".to_owned(), subject: email.to_owned() };
    let arrival = Arrival { identity, email: email.parse().unwrap(), role, at: SystemClock.now() };
    store.arrive(arrival).await.unwrap()
}

async fn sign_in(store: &dyn Store, person: &Person) -> SignedIn {
    let token = SecretToken::generate(&OsRandomness);
    let new = NewSession {
        token: token.hash(),
        person: person.id,
        at: SystemClock.now(),
        place: "127.0.0.1".to_owned(),
        browser: "Benchmark".to_owned(),
        replaces: None,
    };
    store.start_session(new).await.unwrap();
    SignedIn { cookie: format!("session={}", token.reveal()) }
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

/// A database of this run's own.
pub struct PostgresDatabase {
    admin_url: String,
    name: String,
}

impl PostgresDatabase {
    pub async fn create(admin_url: &str) -> Self {
        let database =
            Self { admin_url: admin_url.to_owned(), name: format!("chancery_pages_{}", std::process::id()) };
        database.order("create database").await;
        database
    }

    pub fn url(&self) -> String {
        format!("{}/{}", self.admin_url.rsplit_once('/').unwrap().0, self.name)
    }

    pub async fn drop_it(&self) {
        self.order("drop database").await;
    }

    async fn order(&self, what: &str) {
        let mut connection = PgConnection::connect(&self.admin_url).await.unwrap();
        let statement = sqlx::AssertSqlSafe(format!("{what} {}", self.name));
        connection.execute(sqlx::raw_sql(statement)).await.unwrap();
    }
}
