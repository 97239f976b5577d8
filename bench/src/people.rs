//! People of a firm that is measured, with sessions.

use chancery_domain::{Clock, EventOrigin, Identity, OsRandomness, Person, Role, SecretToken, SystemClock};
use chancery_store::{Arrival, NewSession, Store};

/// Somebody with a session, as their browser shows it.
#[derive(Clone)]
pub struct SignedIn {
    pub cookie: String,
}

pub async fn arrive(store: &Store, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: "http://127.0.0.1:8082".to_owned(), subject: email.to_owned() };
    let arrival = Arrival {
        identity,
        email: email.parse().unwrap(),
        role,
        origin: EventOrigin::local(SystemClock.now(), &OsRandomness),
    };
    store.people.arrive(arrival).await.unwrap()
}

pub async fn sign_in(store: &Store, person: &Person) -> SignedIn {
    let token = SecretToken::generate(&OsRandomness);
    let new = NewSession {
        token: token.hash(),
        person: person.id,
        origin: EventOrigin::local(SystemClock.now(), &OsRandomness),
        place: "127.0.0.1".to_owned(),
        browser: "Benchmark".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    SignedIn { cookie: format!("session={}", token.reveal()) }
}
