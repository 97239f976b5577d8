//! Conformance: the portal's people, their sessions, and sign-ins under way.

use crate::databases::TestDatabase;
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, Identity, LocalPath, OsRandomness, Person, Role, SecretToken, SessionTimes, TokenHash,
    UnixMillis,
};
use chancery_store::{
    Arrival, CODE_TRIES_MEMORY, CodeTry, HalfSignIn, MAX_CODE_TRIES, MailedCode, NewSession, People,
    Sessions, SignIn, SignIns, Store, StoreError,
};
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimes =
    SessionTimes { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

fn identity(subject: &str) -> Identity {
    Identity { issuer: "https://id.example".to_owned(), subject: subject.to_owned() }
}

fn address(text: &str) -> EmailAddress {
    text.parse().unwrap()
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

async fn arrive(store: &dyn Store, subject: &str, role: Role) -> Person {
    let email = address(&format!("{subject}@example.com"));
    store.arrive(Arrival { identity: identity(subject), email, role, at: NOON }).await.unwrap()
}

async fn start(store: &dyn Store, person: &Person, at: UnixMillis) -> TokenHash {
    let token = token();
    let new = NewSession {
        token,
        person: person.id,
        at,
        place: "192.0.2.1".to_owned(),
        browser: "Firefox".to_owned(),
    };
    store.start_session(new).await.unwrap();
    token
}

async fn is_open(store: &dyn Store, token: TokenHash, now: UnixMillis) -> bool {
    store.signed_in(token, "192.0.2.1", TIMES, now).await.unwrap().is_some()
}

pub async fn an_identity_is_one_person_whatever_its_address<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let first = arrive(&*store, "ann", Role::Consultant).await;
    let moved = Arrival {
        identity: identity("ann"),
        email: address("ann.hale@example.com"),
        role: Role::Consultant,
        at: after_s(60),
    };
    let again = store.arrive(moved).await.unwrap();
    assert_eq!((again.id, again.joined_at), (first.id, NOON));
    assert_eq!(again.email, address("ann.hale@example.com"));

    let twin = Arrival {
        identity: Identity { issuer: "https://other.example".to_owned(), subject: "ann".to_owned() },
        email: address("ann.hale@example.com"),
        role: Role::Consultant,
        at: NOON,
    };
    let twin = store.arrive(twin).await.unwrap();
    assert_ne!(twin.id, first.id, "two identities with one address never merge");
    assert_eq!(store.people_with_email(&address("ann.hale@example.com")).await.unwrap(), [again, twin]);
}

pub async fn arriving_raises_a_role_and_never_lowers_it<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    assert_eq!(arrive(&*store, "ruth", Role::Consultant).await.role, Role::Consultant);
    assert_eq!(arrive(&*store, "ruth", Role::Partner).await.role, Role::Partner);
    assert_eq!(arrive(&*store, "ruth", Role::Consultant).await.role, Role::Partner);
}

pub async fn the_last_partner_stays_however_many_race<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut partners = Vec::new();
    for number in 0..6 {
        partners.push(arrive(&*store, &format!("partner{number}"), Role::Partner).await);
    }
    let racing = partners.iter().map(|partner| {
        let (store, id) = (Arc::clone(&store), partner.id);
        tokio::spawn(async move {
            match id.0 % 2 {
                0 => store.set_role(id, Role::Consultant).await.map(|_| ()),
                _ => store.remove_person(id, NOON).await,
            }
        })
    });
    let racing: Vec<_> = racing.collect();
    let mut refused = 0;
    for outcome in racing {
        match outcome.await.unwrap() {
            Ok(()) => {}
            Err(StoreError::LastPartner) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(refused, 1);
    let left = store.list_people().await.unwrap();
    assert_eq!(left.iter().filter(|person| person.role == Role::Partner).count(), 1);
}

pub async fn somebody_who_was_removed_has_no_session_and_does_not_come_back<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let ann = arrive(&*store, "ann", Role::Consultant).await;
    let session = start(&*store, &ann, NOON).await;
    assert!(is_open(&*store, session, NOON).await);
    store.remove_person(ann.id, NOON).await.unwrap();
    assert!(!is_open(&*store, session, NOON).await);
    let new =
        NewSession { token: token(), person: ann.id, at: NOON, place: String::new(), browser: String::new() };
    assert!(matches!(store.start_session(new).await, Err(StoreError::NoSuchPerson(id)) if id == ann.id));
    let back = Arrival { identity: ann.identity, email: ann.email, role: Role::Partner, at: NOON };
    assert!(matches!(store.arrive(back).await, Err(StoreError::PersonRemoved(_))));
    assert!(store.list_people().await.unwrap().is_empty());
    assert!(matches!(store.set_role(ann.id, Role::Partner).await, Err(StoreError::NoSuchPerson(_))));
}

pub async fn a_session_tells_its_owner_as_it_is_now<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let ann = arrive(&*store, "ann", Role::Consultant).await;
    let session = start(&*store, &ann, NOON).await;
    let found = store.signed_in(session, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!((found.person, found.session.browser.as_str()), (ann.clone(), "Firefox"));
    store.set_role(ann.id, Role::Partner).await.unwrap();
    let found = store.signed_in(session, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!(found.person.role, Role::Partner);
    assert!(!is_open(&*store, token(), NOON).await, "another token opens nothing");
}

pub async fn a_session_ends_idle_and_old_and_lives_while_used<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let ann = arrive(&*store, "ann", Role::Consultant).await;
    let (idle, used) = (start(&*store, &ann, NOON).await, start(&*store, &ann, NOON).await);
    let minutes = |count: i64| after_s(count * 60);
    assert!(is_open(&*store, used, minutes(20)).await);
    assert!(!is_open(&*store, idle, minutes(30)).await);
    for count in (40..720).step_by(20) {
        assert!(is_open(&*store, used, minutes(count)).await, "after {count} minutes");
    }
    assert!(!is_open(&*store, used, minutes(720)).await, "twelve hours are the end");
    assert_eq!(store.forget_ended_sessions(TIMES, minutes(720), 100).await.unwrap(), 2);
}

pub async fn sessions_are_listed_with_place_and_ended_one_by_one_or_all<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (ann, ben) =
        (arrive(&*store, "ann", Role::Consultant).await, arrive(&*store, "ben", Role::Consultant).await);
    let (first, second) = (start(&*store, &ann, NOON).await, start(&*store, &ann, after_s(1)).await);
    let bens = start(&*store, &ben, NOON).await;
    store.signed_in(first, "198.51.100.7", TIMES, after_s(2)).await.unwrap().unwrap();
    let listed = store.sessions_of(ann.id, TIMES, after_s(3)).await.unwrap();
    let places: Vec<_> = listed.iter().map(|session| session.place.as_str()).collect();
    assert_eq!(places, ["198.51.100.7", "192.0.2.1"]);

    assert!(!store.end_session(ben.id, listed[0].id).await.unwrap(), "nobody ends another's");
    assert!(store.end_session(ann.id, listed[0].id).await.unwrap());
    assert!(!is_open(&*store, first, after_s(3)).await && is_open(&*store, second, after_s(3)).await);
    assert_eq!(store.end_all_sessions(ann.id).await.unwrap(), 1);
    assert!(!is_open(&*store, second, after_s(3)).await && is_open(&*store, bens, after_s(3)).await);
}

pub async fn a_sign_in_is_taken_once_and_in_time<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let sign_in = SignIn {
        state: "state".to_owned(),
        nonce: "nonce".to_owned(),
        pkce_verifier: "verifier".to_owned(),
        return_to: LocalPath::parse("/clients/7").unwrap(),
        expires_at: after_s(600),
    };
    let (one, late) = (token(), token());
    store.begin_sign_in(one, sign_in.clone()).await.unwrap();
    store.begin_sign_in(late, sign_in.clone()).await.unwrap();
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.take_sign_in(one, NOON).await.unwrap() })
        })
        .collect();
    let mut taken = Vec::new();
    for outcome in racing {
        taken.extend(outcome.await.unwrap());
    }
    assert_eq!(taken, [sign_in]);
    assert_eq!(store.take_sign_in(late, after_s(600)).await.unwrap(), None);
}

fn half(subject: &str, secret: &SecretToken, code: &str) -> HalfSignIn {
    HalfSignIn {
        identity: identity(subject),
        email: address(&format!("{subject}@example.com")),
        return_to: LocalPath::parse("/").unwrap(),
        code: MailedCode { hash: secret.hash_with(code), expires_at: after_s(600), sent: 1, sent_at: NOON },
    }
}

pub async fn the_right_code_passes_once_and_a_late_one_never<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let secret = SecretToken::generate(&OsRandomness);
    store.begin_half_sign_in(secret.hash(), half("ann", &secret, "123456")).await.unwrap();
    let late = store.try_code(secret.hash(), secret.hash_with("123456"), after_s(600)).await.unwrap();
    assert!(matches!(late, CodeTry::Gone));
    let wrong = store.try_code(secret.hash(), secret.hash_with("123457"), NOON).await.unwrap();
    assert!(matches!(wrong, CodeTry::Wrong { left: 4 }));
    let right = store.try_code(secret.hash(), secret.hash_with("123456"), NOON).await.unwrap();
    assert!(matches!(right, CodeTry::Right(half) if half.identity == identity("ann")));
    let again = store.try_code(secret.hash(), secret.hash_with("123456"), NOON).await.unwrap();
    assert!(matches!(again, CodeTry::Gone));
    assert!(store.has_tries_left(&identity("ann"), NOON).await.unwrap());
}

pub async fn wrong_codes_count_over_all_sign_ins_of_one_identity_however_many_race<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let secrets: Vec<_> = (0..20).map(|_| SecretToken::generate(&OsRandomness)).collect();
    for secret in &secrets {
        store.begin_half_sign_in(secret.hash(), half("ann", secret, "123456")).await.unwrap();
    }
    let other = SecretToken::generate(&OsRandomness);
    store.begin_half_sign_in(other.hash(), half("ben", &other, "654321")).await.unwrap();
    let racing: Vec<_> = secrets
        .iter()
        .map(|secret| {
            let (store, secret) = (Arc::clone(&store), secret.clone());
            tokio::spawn(async move {
                store.try_code(secret.hash(), secret.hash_with("000000"), NOON).await.unwrap()
            })
        })
        .collect();
    let (mut wrong, mut news) = (0, 0);
    for outcome in racing {
        match outcome.await.unwrap() {
            CodeTry::Wrong { .. } => wrong += 1,
            CodeTry::Destroyed { is_news, .. } => news += u32::from(is_news),
            CodeTry::Gone => {}
            CodeTry::Right(_) => panic!("a wrong code passed"),
        }
    }
    assert_eq!((wrong, news), (MAX_CODE_TRIES - 1, 1));
    for secret in &secrets {
        let right = store.try_code(secret.hash(), secret.hash_with("123456"), NOON).await.unwrap();
        assert!(matches!(right, CodeTry::Gone | CodeTry::Destroyed { is_news: false, .. }));
    }
    assert!(!store.has_tries_left(&identity("ann"), NOON).await.unwrap());
    let later = UnixMillis(NOON.0 + CODE_TRIES_MEMORY.as_millis() as i64);
    assert!(store.has_tries_left(&identity("ann"), later).await.unwrap());
    let bens = store.try_code(other.hash(), other.hash_with("654321"), NOON).await.unwrap();
    assert!(matches!(bens, CodeTry::Right(_)), "others are not touched");
}

pub async fn a_new_code_takes_the_place_of_the_last<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let secret = SecretToken::generate(&OsRandomness);
    store.begin_half_sign_in(secret.hash(), half("ann", &secret, "123456")).await.unwrap();
    let new = MailedCode {
        hash: secret.hash_with("777777"),
        expires_at: after_s(660),
        sent: 2,
        sent_at: after_s(60),
    };
    assert!(store.replace_code(secret.hash(), new).await.unwrap());
    assert!(!store.replace_code(secret.hash(), new).await.unwrap(), "of two at once, one sends");
    let old = store.try_code(secret.hash(), secret.hash_with("123456"), after_s(60)).await.unwrap();
    assert!(matches!(old, CodeTry::Wrong { .. }));
    let right = store.try_code(secret.hash(), secret.hash_with("777777"), after_s(650)).await.unwrap();
    assert!(matches!(right, CodeTry::Right(_)));
    assert_eq!(store.forget_old_sign_ins(after_s(10_000), 100).await.unwrap(), 0);
}
