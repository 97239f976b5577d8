//! Conformance: the portal's people, their sessions, and sign-ins under way.

use crate::databases::TestDatabase;
use crate::firm::{POLICY, asking, decisions, events, manage, origin};
use crate::samples::NOON;
use chancery_domain::{
    Action, Asker, AuditEvent, AuditedDecision, Decision, EmailAddress, EventKind, Identity, LocalPath,
    OsRandomness, Person, PersonId, Role, SecretToken, SessionTimes, TokenHash, UnixMillis,
};
use chancery_policy::TheFirm;
use chancery_store::{
    Arrival, CODE_PAUSE, CODE_TRIES_MEMORY, CODES_MEMORY, CodeSending, CodeTry, FAILED_LETTER_PAUSE,
    HalfSignIn, MAX_CODE_TRIES, MAX_CODE_TRIES_PER_MAILBOX, MAX_CODES_PER_IDENTITY, MAX_CODES_PER_MAILBOX,
    MAX_CODES_PER_SIGN_IN, MAX_SESSIONS_PER_PERSON, MailedCode, NewSession, PersonError, RemovedPerson,
    SignIn, Store,
};
use std::collections::BTreeSet;
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

async fn arrive(store: &Store, subject: &str, role: Role) -> Person {
    let email = address(&format!("{subject}@example.com"));
    store
        .people
        .arrive(Arrival { identity: identity(subject), email, role, origin: origin(NOON) })
        .await
        .unwrap()
}

async fn start(store: &Store, person: &Person, at: UnixMillis) -> TokenHash {
    let token = token();
    let new = NewSession {
        token,
        person: person.id,
        origin: origin(at),
        place: "192.0.2.1".to_owned(),
        browser: "Firefox".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    token
}

async fn is_open(store: &Store, token: TokenHash, now: UnixMillis) -> bool {
    store.sessions.signed_in(token, "192.0.2.1", TIMES, now).await.unwrap().is_some()
}

pub async fn an_identity_is_one_person_whatever_its_address<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let first = arrive(&store, "ann", Role::Consultant).await;
    let moved = Arrival {
        identity: identity("ann"),
        email: address("ann.hale@example.com"),
        role: Role::Consultant,
        origin: origin(after_s(60)),
    };
    let again = store.people.arrive(moved).await.unwrap();
    assert_eq!((again.id, again.joined_at), (first.id, NOON));
    assert_eq!(again.email, address("ann.hale@example.com"));

    let twin = Arrival {
        identity: Identity { issuer: "https://other.example".to_owned(), subject: "ann".to_owned() },
        email: address("ann.hale@example.com"),
        role: Role::Consultant,
        origin: origin(NOON),
    };
    let twin = store.people.arrive(twin).await.unwrap();
    assert_ne!(twin.id, first.id, "two identities with one address never merge");
    assert_eq!(
        store.people.people_with_email(&address("ann.hale@example.com")).await.unwrap(),
        [again, twin]
    );
}

pub async fn arriving_raises_a_role_and_never_lowers_it<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    assert_eq!(arrive(&store, "ruth", Role::Consultant).await.role, Role::Consultant);
    assert_eq!(arrive(&store, "ruth", Role::Partner).await.role, Role::Partner);
    assert_eq!(arrive(&store, "ruth", Role::Consultant).await.role, Role::Partner);
}

pub async fn the_last_partner_stays_however_many_race<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut partners = Vec::new();
    for number in 0..6 {
        partners.push(arrive(&store, &format!("partner{number}"), Role::Partner).await);
    }
    let racing = partners.iter().map(|partner| {
        let (store, id) = (Arc::clone(&store), partner.id);
        tokio::spawn(async move {
            match id.0 % 2 {
                0 => store.people.set_role(manage(NOON), id, Role::Consultant).await.map(|_| ()),
                _ => store.people.remove_person(manage(NOON), id).await,
            }
        })
    });
    let racing: Vec<_> = racing.collect();
    let mut refused = 0;
    for outcome in racing {
        match outcome.await.unwrap() {
            Ok(()) => {}
            Err(PersonError::LastPartner) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(refused, 1);
    let left = store.people.list_people().await.unwrap();
    assert_eq!(left.iter().filter(|person| person.role == Role::Partner).count(), 1);
}

pub async fn somebody_who_was_removed_has_no_session_and_does_not_come_back<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    let session = start(&store, &ann, NOON).await;
    assert!(is_open(&store, session, NOON).await);
    store.people.remove_person(manage(NOON), ann.id).await.unwrap();
    assert!(!is_open(&store, session, NOON).await);
    let (token, place, browser) = (token(), String::new(), String::new());
    let new = NewSession { token, person: ann.id, origin: origin(NOON), place, browser, replaces: None };
    assert!(
        matches!(store.sessions.start_session(new).await, Err(PersonError::NoSuchPerson(id)) if id == ann.id)
    );
    let back =
        Arrival { identity: ann.identity, email: ann.email, role: Role::Partner, origin: origin(NOON) };
    assert!(matches!(store.people.arrive(back).await, Err(PersonError::PersonRemoved(_))));
    assert!(store.people.list_people().await.unwrap().is_empty());
    assert!(matches!(
        store.people.set_role(manage(NOON), ann.id, Role::Partner).await,
        Err(PersonError::NoSuchPerson(_))
    ));
    assert!(matches!(
        store.people.remove_person(manage(NOON), ann.id).await,
        Err(PersonError::NoSuchPerson(_))
    ));
    assert_eq!(store.sessions.forget_ended_sessions(TIMES, NOON, 100).await.unwrap(), 1);
}

pub async fn somebody_who_is_restored_comes_back_as_they_were_but_for_their_sessions<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    arrive(&store, "ruth", Role::Partner).await;
    let ann = arrive(&store, "ann", Role::Partner).await;
    let session = start(&store, &ann, NOON).await;
    assert!(
        matches!(store.people.restore_person(manage(NOON), ann.id).await, Err(PersonError::NoSuchPerson(id)) if id == ann.id)
    );
    assert!(is_open(&store, session, NOON).await, "nobody was removed, and nothing ends");
    store.people.remove_person(manage(after_s(7)), ann.id).await.unwrap();
    let removed = RemovedPerson { person: ann.clone(), removed_at: after_s(7) };
    assert_eq!(store.people.list_removed_people().await.unwrap(), [removed]);
    assert_eq!(store.people.restore_person(manage(NOON), ann.id).await.unwrap(), ann);
    assert!(!is_open(&store, session, NOON).await, "what has ended stays so");
    assert!(store.people.list_removed_people().await.unwrap().is_empty());
    assert_eq!(store.people.list_people().await.unwrap().len(), 2);
    assert_eq!(arrive(&store, "ann", Role::Consultant).await, ann);
    let session = start(&store, &ann, NOON).await;
    assert!(is_open(&store, session, NOON).await);
}

/// What is on record of a change: who, what was decided, and what was done to whom.
fn in_short(row: &AuditedDecision) -> (Asker, Action, Decision, Option<AuditEvent>) {
    (row.asked.by, row.asked.action, row.decision, row.effect)
}

pub async fn every_change_of_somebody_is_on_record_with_its_old_and_new_value<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let ruth = arrive(&store, "ruth", Role::Partner).await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    start(&store, &ann, NOON).await;
    let by_ruth = Asker::Person { id: ruth.id, role: Role::Partner };
    let permit = POLICY.decide(&asking(by_ruth, NOON), TheFirm).unwrap();
    store.people.set_role(permit, ann.id, Role::Partner).await.unwrap();
    assert_eq!(store.people.sign_out_person(manage(NOON), ann.id).await.unwrap(), 1);
    store.people.remove_person(manage(after_s(5)), ann.id).await.unwrap();
    store.people.restore_person(manage(after_s(6)), ann.id).await.unwrap();

    let effect = |kind| Some(AuditEvent::new(kind, ann.id));
    let role_changed = AuditEvent {
        old_role: Some(Role::Consultant),
        new_role: Some(Role::Partner),
        ..AuditEvent::new(EventKind::RoleChanged, ann.id)
    };
    let by_operator = |effect| (Asker::Operator, Action::ManageTeam, Decision::Allowed, effect);
    let rows: Vec<_> = decisions(&store).await.iter().map(in_short).collect();
    assert_eq!(
        rows,
        [
            (by_ruth, Action::ManageTeam, Decision::Allowed, Some(role_changed)),
            by_operator(effect(EventKind::SessionsEnded)),
            by_operator(effect(EventKind::PersonRemoved)),
            by_operator(effect(EventKind::PersonRestored)),
        ]
    );
}

pub async fn a_change_that_is_rejected_leaves_its_decision_and_no_change_on_record<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let ruth = arrive(&store, "ruth", Role::Partner).await;
    let nobody = PersonId(777);
    let rejected = store.people.set_role(manage(NOON), ruth.id, Role::Consultant).await;
    assert!(matches!(rejected, Err(PersonError::LastPartner)), "{rejected:?}");
    let rejected = store.people.remove_person(manage(NOON), ruth.id).await;
    assert!(matches!(rejected, Err(PersonError::LastPartner)), "{rejected:?}");
    let rejected = store.people.restore_person(manage(NOON), ruth.id).await;
    assert!(matches!(rejected, Err(PersonError::NoSuchPerson(id)) if id == ruth.id), "{rejected:?}");
    let rejected = store.people.sign_out_person(manage(NOON), nobody).await;
    assert!(matches!(rejected, Err(PersonError::NoSuchPerson(id)) if id == nobody), "{rejected:?}");
    let rows: Vec<_> = decisions(&store).await.iter().map(in_short).collect();
    assert_eq!(rows, vec![(Asker::Operator, Action::ManageTeam, Decision::Allowed, None); 4]);
    assert_eq!(store.people.list_people().await.unwrap(), [ruth]);
}

pub async fn signing_in_and_out_and_wrong_codes_are_on_record_with_person_and_address<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let secret = begun(&store, "ann").await;
    assert!(matches!(try_code(&store, &secret, "123457", NOON).await, CodeTry::Wrong { .. }));
    let ann = arrive(&store, "ann", Role::Consultant).await;
    assert!(matches!(try_code(&store, &secret, "123458", NOON).await, CodeTry::Wrong { .. }));
    assert!(matches!(try_code(&store, &secret, "123456", NOON).await, CodeTry::Right(_)));
    start(&store, &ann, NOON).await;
    arrive(&store, "ann", Role::Consultant).await;
    arrive(&store, "ann", Role::Partner).await;
    let session = store.sessions.sessions_of(ann.id, TIMES, NOON).await.unwrap()[0].id;
    assert!(store.sessions.end_session(ann.id, session, &origin(NOON)).await.unwrap());
    assert!(!store.sessions.end_session(ann.id, session, &origin(NOON)).await.unwrap(), "it has ended");
    assert_eq!(store.sessions.end_all_sessions(ann.id, None, &origin(NOON)).await.unwrap(), 0);
    start(&store, &ann, NOON).await;
    assert_eq!(
        store.session_revoker.end_sessions_of_identity(&ann.identity, &origin(NOON)).await.unwrap(),
        1
    );

    let events = events(&store).await;
    assert!(events.iter().all(|event| event.origin == origin(NOON)), "{events:?}");
    let in_short: Vec<_> = events
        .iter()
        .map(|event| {
            let AuditEvent { kind, subject, old_role, new_role } = event.event;
            assert_eq!(subject, event.by.map(|(person, _)| person));
            (kind, event.by, old_role, new_role)
        })
        .collect();
    let (consultant, partner) = (Some((ann.id, Role::Consultant)), Some((ann.id, Role::Partner)));
    assert_eq!(
        in_short,
        [
            (EventKind::CodeRejected, None, None, None),
            (EventKind::PersonJoined, consultant, None, Some(Role::Consultant)),
            (EventKind::CodeRejected, consultant, None, None),
            (EventKind::SignedIn, consultant, None, None),
            (EventKind::PersonPromoted, partner, Some(Role::Consultant), Some(Role::Partner)),
            (EventKind::SignedOut, partner, None, None),
            (EventKind::SignedIn, partner, None, None),
            (EventKind::SignedOut, partner, None, None),
        ]
    );
}

pub async fn somebody_new_who_comes_in_two_browsers_joins_once<D: TestDatabase>(database: Arc<D>) {
    let stores = [database.open().await, database.open().await];
    let racing: Vec<_> = (0..8)
        .map(|number| {
            let store = Arc::clone(&stores[number % 2]);
            tokio::spawn(async move { arrive(&store, "ann", Role::Consultant).await.id })
        })
        .collect();
    let mut people = BTreeSet::new();
    for outcome in racing {
        people.insert(outcome.await.unwrap());
    }
    assert_eq!(people.len(), 1);
    let joined = events(&stores[0]).await;
    assert_eq!(joined.iter().map(|event| event.event.kind).collect::<Vec<_>>(), [EventKind::PersonJoined]);
}

pub async fn a_browsers_last_session_ends_when_its_next_begins<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (ann, ben) =
        (arrive(&store, "ann", Role::Consultant).await, arrive(&store, "ben", Role::Consultant).await);
    let (anns, elsewhere) = (start(&store, &ann, NOON).await, start(&store, &ann, NOON).await);
    let bens = token();
    let new = NewSession {
        token: bens,
        person: ben.id,
        origin: origin(after_s(1)),
        place: "192.0.2.1".to_owned(),
        browser: "Firefox".to_owned(),
        replaces: Some(anns),
    };
    store.sessions.start_session(new).await.unwrap();
    assert!(!is_open(&store, anns, after_s(1)).await, "whoever it was");
    assert!(is_open(&store, bens, after_s(1)).await && is_open(&store, elsewhere, after_s(1)).await);
}

pub async fn of_very_many_sessions_the_longest_unused_end<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    let first = start(&store, &ann, NOON).await;
    let mut newest = first;
    for number in 1..=i64::from(MAX_SESSIONS_PER_PERSON) {
        newest = start(&store, &ann, after_s(number)).await;
    }
    let alive = store.sessions.sessions_of(ann.id, TIMES, after_s(60)).await.unwrap();
    assert_eq!(alive.len(), MAX_SESSIONS_PER_PERSON as usize);
    assert!(!is_open(&store, first, after_s(60)).await && is_open(&store, newest, after_s(60)).await);
}

pub async fn a_short_idle_time_is_not_cut_shorter<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    let session = start(&store, &ann, NOON).await;
    let times = SessionTimes { idle: Duration::from_secs(60), max: Duration::from_secs(3600) };
    for second in [25, 80] {
        let found = store.sessions.signed_in(session, "192.0.2.1", times, after_s(second)).await.unwrap();
        assert!(found.is_some(), "used {second} seconds after noon");
    }
    assert!(store.sessions.signed_in(session, "192.0.2.1", times, after_s(140)).await.unwrap().is_none());
}

pub async fn a_session_tells_its_owner_as_it_is_now<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    let session = start(&store, &ann, NOON).await;
    let found = store.sessions.signed_in(session, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!((found.person, found.session.browser.as_str()), (ann.clone(), "Firefox"));
    store.people.set_role(manage(NOON), ann.id, Role::Partner).await.unwrap();
    let found = store.sessions.signed_in(session, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!(found.person.role, Role::Partner);
    assert!(!is_open(&store, token(), NOON).await, "another token opens nothing");
}

pub async fn a_session_ends_idle_and_old_and_lives_while_used<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    let (idle, used) = (start(&store, &ann, NOON).await, start(&store, &ann, NOON).await);
    let minutes = |count: i64| after_s(count * 60);
    assert!(is_open(&store, used, minutes(20)).await);
    assert!(!is_open(&store, idle, minutes(30)).await);
    for count in (40..720).step_by(20) {
        assert!(is_open(&store, used, minutes(count)).await, "after {count} minutes");
    }
    assert!(!is_open(&store, used, minutes(720)).await, "twelve hours are the end");
    assert_eq!(store.sessions.forget_ended_sessions(TIMES, minutes(720), 100).await.unwrap(), 2);
}

pub async fn sessions_are_listed_with_place_and_ended_one_by_one_or_all<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (ann, ben) =
        (arrive(&store, "ann", Role::Consultant).await, arrive(&store, "ben", Role::Consultant).await);
    let (first, second) = (start(&store, &ann, NOON).await, start(&store, &ann, after_s(1)).await);
    let bens = start(&store, &ben, NOON).await;
    store.sessions.signed_in(first, "198.51.100.7", TIMES, after_s(2)).await.unwrap().unwrap();
    let listed = store.sessions.sessions_of(ann.id, TIMES, after_s(3)).await.unwrap();
    let places: Vec<_> = listed.iter().map(|session| session.place.as_str()).collect();
    assert_eq!(places, ["198.51.100.7", "192.0.2.1"]);

    assert!(
        !store.sessions.end_session(ben.id, listed[0].id, &origin(after_s(3))).await.unwrap(),
        "nobody ends another's"
    );
    assert!(store.sessions.end_session(ann.id, listed[0].id, &origin(after_s(3))).await.unwrap());
    assert!(!is_open(&store, first, after_s(3)).await && is_open(&store, second, after_s(3)).await);
    let third = start(&store, &ann, after_s(3)).await;
    let kept = store.sessions.sessions_of(ann.id, TIMES, after_s(3)).await.unwrap()[0].id;
    assert_eq!(store.sessions.end_all_sessions(ann.id, Some(kept), &origin(after_s(3))).await.unwrap(), 1);
    assert!(!is_open(&store, second, after_s(3)).await && is_open(&store, third, after_s(3)).await);
    assert_eq!(store.sessions.end_all_sessions(ann.id, None, &origin(after_s(3))).await.unwrap(), 1);
    assert!(!is_open(&store, third, after_s(3)).await);
    assert!(!is_open(&store, second, after_s(3)).await && is_open(&store, bens, after_s(3)).await);
}

pub async fn a_new_password_ends_what_its_identity_has_begun_and_nobody_elses<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let ann = arrive(&store, "ann", Role::Consultant).await;
    let twin = Arrival {
        identity: Identity { issuer: "https://other.example".to_owned(), subject: "ann".to_owned() },
        email: ann.email.clone(),
        role: Role::Consultant,
        origin: origin(NOON),
    };
    let twin = store.people.arrive(twin).await.unwrap();
    let (first, second) = (start(&store, &ann, NOON).await, start(&store, &ann, NOON).await);
    let twins = start(&store, &twin, NOON).await;
    let (half, bens_half) = (begun(&store, "ann").await, begun(&store, "ben").await);
    assert_eq!(
        store.session_revoker.end_sessions_of_identity(&ann.identity, &origin(NOON)).await.unwrap(),
        2
    );
    assert!(!is_open(&store, first, NOON).await && !is_open(&store, second, NOON).await);
    assert!(is_open(&store, twins, NOON).await, "another provider's identity is another person");
    assert!(store.sign_ins.half_sign_in(half.hash(), NOON).await.unwrap().is_none());
    assert!(store.sign_ins.half_sign_in(bens_half.hash(), NOON).await.unwrap().is_some());
    assert_eq!(
        store.session_revoker.end_sessions_of_identity(&identity("nobody"), &origin(NOON)).await.unwrap(),
        0
    );
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
    store.sign_ins.begin_sign_in(one, sign_in.clone()).await.unwrap();
    store.sign_ins.begin_sign_in(late, sign_in.clone()).await.unwrap();
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.sign_ins.take_sign_in(one, NOON).await.unwrap() })
        })
        .collect();
    let mut taken = Vec::new();
    for outcome in racing {
        taken.extend(outcome.await.unwrap());
    }
    assert_eq!(taken, [sign_in]);
    assert_eq!(store.sign_ins.take_sign_in(late, after_s(600)).await.unwrap(), None);
}

fn half(subject: &str, secret: &SecretToken, code: &str) -> HalfSignIn {
    HalfSignIn {
        identity: identity(subject),
        email: address(&format!("{subject}@example.com")),
        return_to: LocalPath::parse("/").unwrap(),
        code: MailedCode { hash: secret.hash_with(code), expires_at: after_s(600), sent: 1, sent_at: NOON },
        is_code_sent: false,
    }
}

async fn begin(store: &Store, subject: &str, now: UnixMillis) -> (SecretToken, CodeSending) {
    begin_claiming(store, subject, &format!("{subject}@example.com"), now).await
}

async fn begin_claiming(
    store: &Store,
    subject: &str,
    email: &str,
    now: UnixMillis,
) -> (SecretToken, CodeSending) {
    let secret = SecretToken::generate(&OsRandomness);
    let mut half = half(subject, &secret, "123456");
    half.email = address(email);
    half.code.expires_at = UnixMillis(now.0 + 600_000);
    let sending = store.sign_ins.begin_half_sign_in(secret.hash(), half, now).await.unwrap();
    (secret, sending)
}

async fn begun(store: &Store, subject: &str) -> SecretToken {
    let (secret, sending) = begin(store, subject, NOON).await;
    assert_eq!(sending, CodeSending::Yes);
    secret
}

async fn try_code(store: &Store, secret: &SecretToken, code: &str, now: UnixMillis) -> CodeTry {
    store.sign_ins.try_code(secret.hash(), secret.hash_with(code), &origin(now)).await.unwrap()
}

pub async fn the_right_code_passes_once_and_a_late_one_never<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let secret = begun(&store, "ann").await;
    assert!(matches!(try_code(&store, &secret, "123456", after_s(600)).await, CodeTry::Gone));
    assert!(matches!(try_code(&store, &secret, "123457", NOON).await, CodeTry::Wrong { left: 4 }));
    let found = store.sign_ins.half_sign_in(secret.hash(), NOON).await.unwrap().unwrap();
    assert!(found.email == address("ann@example.com") && !found.is_code_sent);
    let hash = secret.hash_with("123456");
    assert!(store.sign_ins.code_was_sent(secret.hash(), hash, after_s(600), NOON).await.unwrap());
    let found = store.sign_ins.half_sign_in(secret.hash(), NOON).await.unwrap().unwrap();
    assert_eq!((found.is_code_sent, found.code.sent_at), (true, NOON));
    let right = try_code(&store, &secret, "123456", NOON).await;
    assert!(matches!(right, CodeTry::Right(half) if half.identity == identity("ann")));
    assert!(matches!(try_code(&store, &secret, "123456", NOON).await, CodeTry::Gone));
}

pub async fn of_many_racing_with_one_right_code_one_passes<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let secret = begun(&store, "ann").await;
    let racing: Vec<_> = (0..12)
        .map(|_| {
            let (store, secret) = (Arc::clone(&store), secret.clone());
            tokio::spawn(async move { try_code(&store, &secret, "123456", NOON).await })
        })
        .collect();
    let mut passed = 0;
    for outcome in racing {
        match outcome.await.unwrap() {
            CodeTry::Right(_) => passed += 1,
            CodeTry::Gone => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(passed, 1);
}

pub async fn wrong_codes_count_over_all_sign_ins_of_one_identity_however_many_race<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let mut secrets = Vec::new();
    for _ in 0..20 {
        secrets.push(begun(&store, "ann").await);
    }
    let other = begun(&store, "ben").await;
    let racing: Vec<_> = secrets
        .iter()
        .map(|secret| {
            let (store, secret) = (Arc::clone(&store), secret.clone());
            tokio::spawn(async move { try_code(&store, &secret, "000000", NOON).await })
        })
        .collect();
    let (mut wrong, mut news) = (Vec::new(), 0);
    for outcome in racing {
        match outcome.await.unwrap() {
            CodeTry::Wrong { left } => wrong.push(left),
            CodeTry::Destroyed { is_news, .. } => news += u32::from(is_news),
            CodeTry::Gone => {}
            CodeTry::Right(_) => panic!("a wrong code passed"),
        }
    }
    wrong.sort_unstable();
    assert_eq!((wrong.as_slice(), news), (&[1, 2, 3, 4][..], 1));
    for secret in &secrets {
        assert!(matches!(try_code(&store, secret, "123456", NOON).await, CodeTry::Gone));
    }
    let until = UnixMillis(NOON.0 + CODE_TRIES_MEMORY.as_millis() as i64);
    let (late, refused) = begin(&store, "ann", after_s(300)).await;
    assert_eq!(refused, CodeSending::NoTriesLeft { until });
    assert!(matches!(try_code(&store, &late, "123456", after_s(300)).await, CodeTry::Gone));
    assert_eq!(begin(&store, "ann", until).await.1, CodeSending::Yes);
    assert!(matches!(try_code(&store, &other, "654321", NOON).await, CodeTry::Wrong { left: 4 }));
    assert!(
        matches!(try_code(&store, &other, "123456", NOON).await, CodeTry::Right(_)),
        "others are not touched"
    );
    assert_eq!(MAX_CODE_TRIES, 5);
}

pub async fn new_sign_ins_and_new_codes_give_no_new_tries<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    for left in [4, 3] {
        let secret = begun(&store, "ann").await;
        let wrong = try_code(&store, &secret, "000000", NOON).await;
        assert!(matches!(wrong, CodeTry::Wrong { left: now } if now == left), "{wrong:?}");
    }
    let secret = begun(&store, "ann").await;
    let after_pause = UnixMillis(NOON.0 + CODE_PAUSE.as_millis() as i64);
    let hash = secret.hash_with("777777");
    let sending = store.sign_ins.may_send_code(secret.hash(), after_pause).await.unwrap();
    assert_eq!(sending, CodeSending::Yes);
    assert!(store.sign_ins.code_was_sent(secret.hash(), hash, after_s(700), after_pause).await.unwrap());
    assert!(matches!(try_code(&store, &secret, "123456", after_pause).await, CodeTry::Wrong { left: 2 }));
    assert!(matches!(try_code(&store, &secret, "123456", after_pause).await, CodeTry::Wrong { left: 1 }));
    let last = try_code(&store, &secret, "123456", after_pause).await;
    assert!(matches!(last, CodeTry::Destroyed { is_news: true, .. }), "{last:?}");
}

pub async fn the_owners_coming_in_gives_a_guesser_no_new_tries<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (guesser, owner) = (begun(&store, "ann").await, begun(&store, "ann").await);
    for _ in 0..3 {
        assert!(matches!(try_code(&store, &guesser, "000000", NOON).await, CodeTry::Wrong { .. }));
    }
    assert!(matches!(try_code(&store, &owner, "123457", NOON).await, CodeTry::Wrong { left: 1 }));
    assert!(matches!(try_code(&store, &owner, "123456", NOON).await, CodeTry::Right(_)));
    let wrong = try_code(&store, &guesser, "000000", NOON).await;
    assert!(
        matches!(wrong, CodeTry::Wrong { left: 1 }),
        "the owner's own slip is forgiven, the guesses are not: {wrong:?}"
    );
    assert!(matches!(try_code(&store, &guesser, "000000", NOON).await, CodeTry::Destroyed { .. }));
}

pub async fn a_new_code_takes_the_place_of_the_last_and_letters_are_bounded<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let secret = begun(&store, "ann").await;
    let new_code = async |code: &str, now| {
        let sending = store.sign_ins.may_send_code(secret.hash(), UnixMillis(now)).await.unwrap();
        if sending == CodeSending::Yes {
            let (hash, expires_at) = (secret.hash_with(code), UnixMillis(now + 600_000));
            assert!(
                store.sign_ins.code_was_sent(secret.hash(), hash, expires_at, UnixMillis(now)).await.unwrap()
            );
        }
        sending
    };
    let pause_ms = CODE_PAUSE.as_millis() as i64;
    let soonest = UnixMillis(NOON.0 + pause_ms);
    assert_eq!(new_code("777777", NOON.0 + pause_ms - 1).await, CodeSending::NotBefore(soonest));
    let mut now = NOON.0;
    for number in 2..=MAX_CODES_PER_SIGN_IN {
        now += pause_ms;
        assert_eq!(new_code("777777", now).await, CodeSending::Yes, "letter {number}");
        assert!(matches!(new_code("888888", now).await, CodeSending::NotBefore(_) | CodeSending::NoMore));
    }
    assert_eq!(new_code("888888", now + pause_ms).await, CodeSending::NoMore);
    let now = UnixMillis(now);
    assert!(matches!(try_code(&store, &secret, "123456", now).await, CodeTry::Wrong { .. }));
    assert!(matches!(try_code(&store, &secret, "777777", now).await, CodeTry::Right(_)));
    assert_eq!(new_code("888888", now.0 + pause_ms).await, CodeSending::Gone);
}

pub async fn a_letter_that_could_not_be_sent_leaves_the_last_code_in_force_and_counts_nowhere<
    D: TestDatabase,
>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let secret = begun(&store, "ann").await;
    store.sign_ins.code_was_not_sent(secret.hash(), NOON).await.unwrap();
    let found = store.sign_ins.half_sign_in(secret.hash(), NOON).await.unwrap().unwrap();
    assert_eq!((found.is_code_sent, found.code.sent), (false, 0));
    let soonest = UnixMillis(NOON.0 + FAILED_LETTER_PAUSE.as_millis() as i64);
    assert_eq!(
        store.sign_ins.may_send_code(secret.hash(), NOON).await.unwrap(),
        CodeSending::NotBefore(soonest)
    );
    assert_eq!(store.sign_ins.may_send_code(secret.hash(), soonest).await.unwrap(), CodeSending::Yes);
    let hash = secret.hash_with("777777");
    assert!(store.sign_ins.code_was_sent(secret.hash(), hash, after_s(600), soonest).await.unwrap());

    // More often than letters may be sent to one identity, one mailbox or in one sign-in.
    let mut now = after_s(60);
    for number in 0..2 * MAX_CODES_PER_MAILBOX {
        assert_eq!(
            store.sign_ins.may_send_code(secret.hash(), now).await.unwrap(),
            CodeSending::Yes,
            "{number}"
        );
        store.sign_ins.code_was_not_sent(secret.hash(), now).await.unwrap();
        now = UnixMillis(now.0 + FAILED_LETTER_PAUSE.as_millis() as i64 / 2);
        assert!(matches!(
            store.sign_ins.may_send_code(secret.hash(), now).await.unwrap(),
            CodeSending::NotBefore(_)
        ));
        now = UnixMillis(now.0 + FAILED_LETTER_PAUSE.as_millis() as i64 / 2);
        now = UnixMillis(now.0.min(after_s(599).0));
        if now == after_s(599) {
            break;
        }
    }
    let found = store.sign_ins.half_sign_in(secret.hash(), now).await.unwrap().unwrap();
    assert_eq!((found.code.sent, found.code.sent_at), (1, soonest));
    assert!(matches!(try_code(&store, &secret, "777777", now).await, CodeTry::Right(_)));
    assert!(
        !store.sign_ins.code_was_sent(secret.hash(), hash, after_s(900), now).await.unwrap(),
        "it is over"
    );
    store.sign_ins.code_was_not_sent(secret.hash(), now).await.unwrap();
}

pub async fn many_identities_that_claim_one_mailbox_get_no_more_tries_and_letters_for_it<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let owner = begun(&store, "ann").await;
    let mut tried = 0;
    let destroyed = 'all: loop {
        let (secret, sending) = begin_claiming(&store, &format!("eve{tried}"), "ann@example.com", NOON).await;
        assert_eq!(sending, CodeSending::Yes, "after {tried} tries");
        for _ in 1..MAX_CODE_TRIES {
            tried += 1;
            match try_code(&store, &secret, "000000", NOON).await {
                CodeTry::Wrong { .. } => assert!(tried < MAX_CODE_TRIES_PER_MAILBOX, "{tried}"),
                other => break 'all other,
            }
        }
    };
    assert!(matches!(destroyed, CodeTry::Destroyed { is_news: true, .. }), "{destroyed:?}");
    assert_eq!(tried, MAX_CODE_TRIES_PER_MAILBOX);
    assert!(matches!(try_code(&store, &owner, "123456", NOON).await, CodeTry::Gone));
    let until = UnixMillis(NOON.0 + CODE_TRIES_MEMORY.as_millis() as i64);
    let (_, refused) = begin_claiming(&store, "another", "ann@example.com", NOON).await;
    assert_eq!(refused, CodeSending::NoTriesLeft { until });
    assert_eq!(begin(&store, "ben", NOON).await.1, CodeSending::Yes, "other mailboxes are not touched");
    assert_eq!(begin_claiming(&store, "another", "ann@example.com", until).await.1, CodeSending::Yes);

    for number in 0..MAX_CODES_PER_MAILBOX {
        let (_, sending) = begin_claiming(&store, &format!("flood{number}"), "ruth@example.com", NOON).await;
        assert_eq!(sending, CodeSending::Yes, "{number}");
    }
    let until = UnixMillis(NOON.0 + CODES_MEMORY.as_millis() as i64);
    let (_, refused) = begin_claiming(&store, "more", "ruth@example.com", NOON).await;
    assert_eq!(refused, CodeSending::TooMany { until });
}

pub async fn letters_to_one_identity_are_bounded_until_one_is_used_or_time_has_passed<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let mut last = begun(&store, "ann").await;
    for _ in 1..MAX_CODES_PER_IDENTITY {
        last = begun(&store, "ann").await;
    }
    let until = UnixMillis(NOON.0 + CODES_MEMORY.as_millis() as i64);
    assert_eq!(begin(&store, "ann", after_s(60)).await.1, CodeSending::TooMany { until });
    assert_eq!(begin(&store, "ben", after_s(60)).await.1, CodeSending::Yes);
    assert!(matches!(try_code(&store, &last, "123456", after_s(60)).await, CodeTry::Right(_)));
    for _ in 0..MAX_CODES_PER_IDENTITY {
        assert_eq!(begin(&store, "ann", after_s(60)).await.1, CodeSending::Yes);
    }
    assert!(matches!(begin(&store, "ann", after_s(60)).await.1, CodeSending::TooMany { .. }));
    assert_eq!(begin(&store, "ann", until).await.1, CodeSending::Yes);
}

pub async fn of_more_sign_ins_than_are_kept_the_oldest_go<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut tokens = Vec::new();
    for number in [3, 1, 4, 2, 5] {
        let sign_in = SignIn {
            state: number.to_string(),
            nonce: "nonce".to_owned(),
            pkce_verifier: "verifier".to_owned(),
            return_to: LocalPath::parse("/").unwrap(),
            expires_at: after_s(600 + number),
        };
        let token = token();
        store.sign_ins.begin_sign_in(token, sign_in).await.unwrap();
        tokens.push((number, token));
    }
    assert_eq!(store.sign_ins.forget_old_sign_ins(NOON, 100, 5).await.unwrap(), 0);
    assert_eq!(store.sign_ins.forget_old_sign_ins(NOON, 100, 3).await.unwrap(), 2);
    let mut left = Vec::new();
    for (number, token) in tokens {
        left.extend(store.sign_ins.take_sign_in(token, NOON).await.unwrap().map(|_| number));
    }
    assert_eq!(left, [3, 4, 5]);
}

pub async fn old_sign_ins_are_forgotten_a_little_at_a_time<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    for number in 0..5 {
        let sign_in = SignIn {
            state: number.to_string(),
            nonce: "nonce".to_owned(),
            pkce_verifier: "verifier".to_owned(),
            return_to: LocalPath::parse("/").unwrap(),
            expires_at: after_s(600),
        };
        store.sign_ins.begin_sign_in(token(), sign_in).await.unwrap();
        begun(&store, &format!("person{number}")).await;
    }
    assert_eq!(store.sign_ins.forget_old_sign_ins(after_s(599), 100, 100).await.unwrap(), 0);
    assert_eq!(store.sign_ins.forget_old_sign_ins(after_s(600), 3, 100).await.unwrap(), 6);
    assert_eq!(store.sign_ins.forget_old_sign_ins(after_s(600), 3, 100).await.unwrap(), 4);
    assert_eq!(
        store.throttles.delete_expired_throttles(after_s(600), 100).await.unwrap(),
        10,
        "no code was wrong"
    );
    let all_forgotten = UnixMillis(NOON.0 + CODES_MEMORY.as_millis() as i64);
    assert_eq!(
        store.throttles.delete_expired_throttles(all_forgotten, 100).await.unwrap(),
        10,
        "counts of emails"
    );
    assert_eq!(store.throttles.delete_expired_throttles(all_forgotten, 100).await.unwrap(), 0);
    assert_eq!(store.sign_ins.forget_old_sign_ins(all_forgotten, 100, 100).await.unwrap(), 0);
}
