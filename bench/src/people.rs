//! People with sessions, for benchmarks.

use chancery_domain::{Clock, EventOrigin, Identity, OsRandomness, Person, Role, SecretToken, SystemClock};
use chancery_store::{NewSession, SessionAuthentication, Store, VerifiedIdentity};

/// A person's session, as the cookie that their browser sends.
#[derive(Clone)]
pub struct SignedIn {
    pub cookie: String,
}

pub async fn create_person(store: &Store, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: "http://127.0.0.1:8082".to_owned(), subject: email.to_owned() };
    let verified = VerifiedIdentity {
        identity,
        email: email.parse().unwrap(),
        role,
        origin: EventOrigin::local(SystemClock.now(), &OsRandomness),
    };
    store.people.sign_in(verified).await.unwrap()
}

pub async fn sign_in(store: &Store, person: &Person) -> SignedIn {
    let token = SecretToken::generate(&OsRandomness);
    let new = NewSession {
        token: token.hash(),
        binding: None,
        person: person.id,
        authentication: SessionAuthentication::at(SystemClock.now()),
        origin: EventOrigin::local(SystemClock.now(), &OsRandomness),
        ip_address: "127.0.0.1".to_owned(),
        user_agent: "Benchmark".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    SignedIn { cookie: format!("session={}", token.reveal()) }
}
