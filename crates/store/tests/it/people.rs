//! Conformance: the portal's people, their sessions, and sign-ins in progress.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{POLICY, authz_request, decisions, events, manage, origin};
use crate::samples::NOON;
use chancery_domain::{
    Action, AuditEvent, AuditedDecision, CODE_EMAIL_INTERVAL, CODE_EMAIL_WINDOW, Decision, EmailAddress,
    EventKind, FAILED_CODE_EMAIL_INTERVAL, Identity, LocalPath, MAX_CODE_EMAILS_PER_IDENTITY,
    MAX_CODE_EMAILS_PER_MAILBOX, MAX_CODE_EMAILS_PER_SIGN_IN, MAX_WRONG_CODES, MAX_WRONG_CODES_PER_MAILBOX,
    OsRandomness, Person, PersonId, Principal, Profile, Role, SecretToken, SessionTimeouts, Throttle,
    TokenHash, UnixMillis, WRONG_CODE_LOCKOUT,
};
use chancery_policy::FirmResource;
use chancery_store::{
    CodeEmailOutcome, CodeOutcome, MAX_SESSIONS_PER_PERSON, NamedPerson, NewSession, PendingEmailCode,
    PendingSignIn, PersonError, RemovedPerson, SentEmailCode, SessionAuthentication, SignInPurpose, Store,
    VerifiedIdentity,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

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

async fn sign_in(store: &Store, subject: &str, role: Role) -> Person {
    let email = address(&format!("{subject}@example.com"));
    store
        .people
        .sign_in(VerifiedIdentity { identity: identity(subject), email, role, origin: origin(NOON) })
        .await
        .unwrap()
}

async fn start(store: &Store, person: &Person, at: UnixMillis) -> TokenHash {
    let token = token();
    let new = NewSession {
        token,
        binding: None,
        person: person.id,
        authentication: SessionAuthentication::at(at),
        origin: origin(at),
        ip_address: "192.0.2.1".to_owned(),
        user_agent: "Firefox".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    token
}

async fn is_open(store: &Store, token: TokenHash, now: UnixMillis) -> bool {
    store.sessions.active_session(token, "192.0.2.1", TIMES, now).await.unwrap().is_some()
}

pub async fn identity_maps_to_one_person_across_email_changes(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let first = sign_in(&store, "ann", Role::Consultant).await;
    let moved = VerifiedIdentity {
        identity: identity("ann"),
        email: address("ann.hale@example.com"),
        role: Role::Consultant,
        origin: origin(after_s(60)),
    };
    let again = store.people.sign_in(moved).await.unwrap();
    assert_eq!((again.id, again.joined_at), (first.id, NOON));
    assert_eq!(again.email, address("ann.hale@example.com"));

    let twin = VerifiedIdentity {
        identity: Identity { issuer: "https://other.example".to_owned(), subject: "ann".to_owned() },
        email: address("ann.hale@example.com"),
        role: Role::Consultant,
        origin: origin(NOON),
    };
    let twin = store.people.sign_in(twin).await.unwrap();
    assert_ne!(twin.id, first.id, "two identities with one address never merge");
    assert_eq!(store.people.people_by_email(&address("ann.hale@example.com")).await.unwrap(), [again, twin]);
}

pub async fn sign_in_raises_role_and_never_lowers_it(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    assert_eq!(sign_in(&store, "ruth", Role::Consultant).await.role, Role::Consultant);
    assert_eq!(sign_in(&store, "ruth", Role::Partner).await.role, Role::Partner);
    assert_eq!(sign_in(&store, "ruth", Role::Consultant).await.role, Role::Partner);
}

pub async fn last_partner_is_never_lost_under_race(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut partners = Vec::new();
    for number in 0..6 {
        partners.push(sign_in(&store, &format!("partner{number}"), Role::Partner).await);
    }
    let racing = partners.iter().map(|partner| {
        let (store, id) = (Arc::clone(&store), partner.id);
        tokio::spawn(async move {
            match id.0 % 2 {
                0 => store.people.set_role(manage(NOON), id, Role::Consultant).await.map(|_| ()),
                _ => store.people.remove_person(manage(NOON), id, Box::new(|_| true)).await.map(|_| ()),
            }
        })
    });
    let racing: Vec<_> = racing.collect();
    let mut rejected = 0;
    for outcome in racing {
        match outcome.await.unwrap() {
            Ok(()) => {}
            Err(PersonError::LastPartner) => rejected += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(rejected, 1);
    let left = store.people.list_people().await.unwrap();
    assert_eq!(left.iter().filter(|person| person.role == Role::Partner).count(), 1);
}

pub async fn removed_person_has_no_sessions_and_cannot_sign_in(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    let session = start(&store, &ann, NOON).await;
    assert!(is_open(&store, session, NOON).await);
    store.people.remove_person(manage(NOON), ann.id, Box::new(|_| true)).await.unwrap();
    assert!(!is_open(&store, session, NOON).await);
    let (token, ip_address, user_agent) = (token(), String::new(), String::new());
    let new = NewSession {
        token,
        binding: None,
        person: ann.id,
        authentication: SessionAuthentication::at(NOON),
        origin: origin(NOON),
        ip_address,
        user_agent,
        replaces: None,
    };
    assert!(
        matches!(store.sessions.start_session(new).await, Err(PersonError::NoSuchPerson(id)) if id == ann.id)
    );
    let back = VerifiedIdentity {
        identity: ann.identity,
        email: ann.email,
        role: Role::Partner,
        origin: origin(NOON),
    };
    assert!(matches!(store.people.sign_in(back).await, Err(PersonError::PersonRemoved(_))));
    assert!(store.people.list_people().await.unwrap().is_empty());
    assert!(matches!(
        store.people.set_role(manage(NOON), ann.id, Role::Partner).await,
        Err(PersonError::NoSuchPerson(_))
    ));
    assert!(matches!(
        store.people.remove_person(manage(NOON), ann.id, Box::new(|_| true)).await,
        Err(PersonError::NoSuchPerson(_))
    ));
    assert_eq!(store.sessions.delete_expired_sessions(TIMES, NOON, 100).await.unwrap(), 1);
}

pub async fn removal_holds_for_the_mailbox_of_new_identities(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let arrive = async |subject: &str, email: &str| {
        let (identity, email, role) = (identity(subject), address(email), Role::Consultant);
        store.people.sign_in(VerifiedIdentity { identity, email, role, origin: origin(NOON) }).await
    };
    let ann = arrive("ann", "ann@example.com").await.unwrap();
    let twin = arrive("twin", "ann+twin@example.com").await.unwrap();
    let session = start(&store, &twin, NOON).await;
    let removed = store.people.remove_person(manage(NOON), ann.id, Box::new(|_| true)).await.unwrap();
    assert_eq!(removed.iter().map(|person| person.id).collect::<Vec<_>>(), [ann.id, twin.id]);
    assert!(!is_open(&store, session, NOON).await);
    for (subject, email) in
        [("new", "ann@example.com"), ("new", "ANN+x@example.com"), ("other", "ann+x+y@example.com")]
    {
        let outcome = arrive(subject, email).await;
        assert!(
            matches!(outcome, Err(PersonError::PersonRemoved(id)) if id == ann.id),
            "{email}: {outcome:?}"
        );
    }
    // A removed person who comes with another address does not free their mailbox.
    assert!(matches!(arrive("ann", "ann.lee@example.com").await, Err(PersonError::PersonRemoved(_))));
    assert!(matches!(arrive("new", "ann@example.com").await, Err(PersonError::PersonRemoved(_))));
    let removed = store.people.list_removed_people().await.unwrap();
    assert!(removed.iter().any(|removed| (removed.person.id, &removed.person.email) == (ann.id, &ann.email)));
    let outcome = arrive("twin", "ann+twin@example.com").await;
    assert!(matches!(outcome, Err(PersonError::PersonRemoved(id)) if id == twin.id), "{outcome:?}");
    assert!(
        arrive("anna", "anna@example.com").await.is_ok() && arrive("far", "ann@example.org").await.is_ok()
    );
    let removals: Vec<_> = decisions(&store).await.into_iter().filter_map(|row| row.effect).collect();
    let removal = |person: &Person| AuditEvent::new(EventKind::PersonRemoved, person.id);
    assert_eq!(removals, [removal(&ann), removal(&twin)], "one row each");
    for person in [&ann, &twin] {
        store.people.restore_person(manage(NOON), person.id).await.unwrap();
    }
    assert_ne!(arrive("new", "ann@example.com").await.unwrap().id, ann.id);
    assert_eq!(arrive("ann", "ann@example.com").await.unwrap().id, ann.id);
}

pub async fn removal_of_a_mailbox_keeps_a_partner(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let arrive = async |subject: &str, email: &str, role| {
        let (identity, email) = (identity(subject), address(email));
        let verified = VerifiedIdentity { identity, email, role, origin: origin(NOON) };
        store.people.sign_in(verified).await.unwrap()
    };
    let ann = arrive("ann", "ann@example.com", Role::Consultant).await;
    let twin = arrive("twin", "ann+twin@example.com", Role::Partner).await;
    for person in [&ann, &twin] {
        let outcome = store.people.remove_person(manage(NOON), person.id, Box::new(|_| true)).await;
        assert!(matches!(outcome, Err(PersonError::LastPartner)), "{outcome:?}");
    }
    assert_eq!(store.people.list_people().await.unwrap().len(), 2, "nobody is removed");
    arrive("ruth", "ruth@example.com", Role::Partner).await;
    let unconfirmed = store.people.remove_person(manage(NOON), ann.id, Box::new(|people| people == 1)).await;
    assert!(matches!(unconfirmed, Err(PersonError::Unconfirmed(people)) if people.len() == 2));
    assert_eq!(store.people.list_people().await.unwrap().len(), 3);
    assert_eq!(store.people.remove_person(manage(NOON), ann.id, Box::new(|_| true)).await.unwrap().len(), 2);
    assert_eq!(store.people.list_people().await.unwrap().len(), 1);
}

pub async fn profile_round_trips_and_is_kept_at_sign_in(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    assert_eq!(ann.profile, Profile::default());
    let profile = Profile {
        name: Some("Åsa \u{1F600} O'Neil".parse().unwrap()),
        time_zone: Some("Europe/Berlin".parse().unwrap()),
    };
    store.people.set_profile(ann.id, &profile).await.unwrap();
    let again = sign_in(&store, "ann", Role::Partner).await;
    assert_eq!((again.role, &again.profile), (Role::Partner, &profile));
    let token = start(&store, &again, NOON).await;
    let found = store.sessions.active_session(token, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!(found.person.profile, profile);
    let named = NamedPerson { id: ann.id, name: profile.name.clone().unwrap() };
    assert_eq!(store.people.list_names().await.unwrap(), std::slice::from_ref(&named));
    sign_in(&store, "ruth", Role::Partner).await;
    store.people.remove_person(manage(NOON), ann.id, Box::new(|_| true)).await.unwrap();
    assert_eq!(store.people.list_names().await.unwrap(), [named], "old records still show the name");
    let outcome = store.people.set_profile(ann.id, &Profile::default()).await;
    assert!(matches!(outcome, Err(PersonError::NoSuchPerson(id)) if id == ann.id));
    store.people.restore_person(manage(NOON), ann.id).await.unwrap();
    store.people.set_profile(ann.id, &Profile::default()).await.unwrap();
    assert!(store.people.list_names().await.unwrap().is_empty());
}

pub async fn restored_person_keeps_role_but_no_sessions(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    sign_in(&store, "ruth", Role::Partner).await;
    let ann = sign_in(&store, "ann", Role::Partner).await;
    let session = start(&store, &ann, NOON).await;
    assert!(
        matches!(store.people.restore_person(manage(NOON), ann.id).await, Err(PersonError::NoSuchPerson(id)) if id == ann.id)
    );
    assert!(is_open(&store, session, NOON).await, "nobody was removed, and nothing ends");
    store.people.remove_person(manage(after_s(7)), ann.id, Box::new(|_| true)).await.unwrap();
    let removed = RemovedPerson { person: ann.clone(), removed_at: after_s(7) };
    assert_eq!(store.people.list_removed_people().await.unwrap(), [removed]);
    assert_eq!(store.people.restore_person(manage(NOON), ann.id).await.unwrap(), ann);
    assert!(!is_open(&store, session, NOON).await, "what has ended stays so");
    assert!(store.people.list_removed_people().await.unwrap().is_empty());
    assert_eq!(store.people.list_people().await.unwrap().len(), 2);
    assert_eq!(sign_in(&store, "ann", Role::Consultant).await, ann);
    let session = start(&store, &ann, NOON).await;
    assert!(is_open(&store, session, NOON).await);
}

/// The audited details of a change: principal, action, decision and effect.
fn summary(row: &AuditedDecision) -> (Principal, Action, Decision, Option<AuditEvent>) {
    (row.access_request.by, row.access_request.action, row.decision, row.effect)
}

pub async fn person_changes_are_audited_with_old_and_new_value(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ruth = sign_in(&store, "ruth", Role::Partner).await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    start(&store, &ann, NOON).await;
    let by_ruth = Principal::Person { id: ruth.id, role: Role::Partner };
    let permit = POLICY.decide(&authz_request(by_ruth, NOON), FirmResource).unwrap();
    store.people.set_role(permit, ann.id, Role::Partner).await.unwrap();
    assert_eq!(store.people.sign_out_person(manage(NOON), ann.id).await.unwrap(), 1);
    store.people.remove_person(manage(after_s(5)), ann.id, Box::new(|_| true)).await.unwrap();
    store.people.restore_person(manage(after_s(6)), ann.id).await.unwrap();

    let effect = |kind| Some(AuditEvent::new(kind, ann.id));
    let role_changed = AuditEvent {
        old_role: Some(Role::Consultant),
        new_role: Some(Role::Partner),
        ..AuditEvent::new(EventKind::RoleChanged, ann.id)
    };
    let by_operator = |effect| (Principal::Operator, Action::ManageTeam, Decision::Allowed, effect);
    let rows: Vec<_> = decisions(&store).await.iter().map(summary).collect();
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

pub async fn rejected_person_change_audits_decision_without_effect(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ruth = sign_in(&store, "ruth", Role::Partner).await;
    let unknown = PersonId(777);
    let rejected = store.people.set_role(manage(NOON), ruth.id, Role::Consultant).await;
    assert!(matches!(rejected, Err(PersonError::LastPartner)), "{rejected:?}");
    let rejected = store.people.remove_person(manage(NOON), ruth.id, Box::new(|_| true)).await;
    assert!(matches!(rejected, Err(PersonError::LastPartner)), "{rejected:?}");
    let rejected = store.people.restore_person(manage(NOON), ruth.id).await;
    assert!(matches!(rejected, Err(PersonError::NoSuchPerson(id)) if id == ruth.id), "{rejected:?}");
    let rejected = store.people.sign_out_person(manage(NOON), unknown).await;
    assert!(matches!(rejected, Err(PersonError::NoSuchPerson(id)) if id == unknown), "{rejected:?}");
    let rows: Vec<_> = decisions(&store).await.iter().map(summary).collect();
    assert_eq!(rows, vec![(Principal::Operator, Action::ManageTeam, Decision::Allowed, None); 4]);
    assert_eq!(store.people.list_people().await.unwrap(), [ruth]);
}

pub async fn sign_in_sign_out_and_wrong_codes_are_audited_with_ip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let secret = begin_ok(&store, "ann").await;
    assert!(matches!(verify_code(&store, &secret, "123457", NOON).await, CodeOutcome::Rejected { .. }));
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    assert!(matches!(verify_code(&store, &secret, "123458", NOON).await, CodeOutcome::Rejected { .. }));
    assert!(matches!(verify_code(&store, &secret, "123456", NOON).await, CodeOutcome::Accepted(_)));
    start(&store, &ann, NOON).await;
    sign_in(&store, "ann", Role::Consultant).await;
    sign_in(&store, "ann", Role::Partner).await;
    let session = store.sessions.list_sessions(ann.id, TIMES, NOON).await.unwrap()[0].id;
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
    let summary: Vec<_> = events
        .iter()
        .map(|event| {
            let AuditEvent { kind, subject, old_role, new_role } = event.event;
            assert_eq!(subject, event.by.map(|(person, _)| person));
            (kind, event.by, old_role, new_role)
        })
        .collect();
    let (consultant, partner) = (Some((ann.id, Role::Consultant)), Some((ann.id, Role::Partner)));
    assert_eq!(
        summary,
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

pub async fn concurrent_first_sign_ins_create_one_person(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await];
    let racing: Vec<_> = (0..8)
        .map(|number| {
            let store = Arc::clone(&stores[number % 2]);
            tokio::spawn(async move { sign_in(&store, "ann", Role::Consultant).await.id })
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

pub async fn new_session_ends_browsers_previous_session(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, ben) =
        (sign_in(&store, "ann", Role::Consultant).await, sign_in(&store, "ben", Role::Consultant).await);
    let (anns, elsewhere) = (start(&store, &ann, NOON).await, start(&store, &ann, NOON).await);
    let bens = token();
    let new = NewSession {
        token: bens,
        binding: None,
        person: ben.id,
        authentication: SessionAuthentication::at(NOON),
        origin: origin(after_s(1)),
        ip_address: "192.0.2.1".to_owned(),
        user_agent: "Firefox".to_owned(),
        replaces: Some(anns),
    };
    store.sessions.start_session(new).await.unwrap();
    assert!(!is_open(&store, anns, after_s(1)).await, "whoever it was");
    assert!(is_open(&store, bens, after_s(1)).await && is_open(&store, elsewhere, after_s(1)).await);
}

pub async fn least_recently_used_sessions_end_past_limit(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    let first = start(&store, &ann, NOON).await;
    let mut newest = first;
    for number in 1..=i64::from(MAX_SESSIONS_PER_PERSON) {
        newest = start(&store, &ann, after_s(number)).await;
    }
    let alive = store.sessions.list_sessions(ann.id, TIMES, after_s(60)).await.unwrap();
    assert_eq!(alive.len(), MAX_SESSIONS_PER_PERSON as usize);
    assert!(!is_open(&store, first, after_s(60)).await && is_open(&store, newest, after_s(60)).await);
}

pub async fn touch_interval_does_not_shorten_idle_timeout(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    let session = start(&store, &ann, NOON).await;
    let times = SessionTimeouts { idle: Duration::from_secs(60), max: Duration::from_secs(3600) };
    for second in [25, 80] {
        let found =
            store.sessions.active_session(session, "192.0.2.1", times, after_s(second)).await.unwrap();
        assert!(found.is_some(), "used {second} seconds after noon");
    }
    assert!(
        store.sessions.active_session(session, "192.0.2.1", times, after_s(140)).await.unwrap().is_none()
    );
}

pub async fn session_returns_current_person_data(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    let session = start(&store, &ann, NOON).await;
    let found = store.sessions.active_session(session, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!((found.person, found.session.user_agent.as_str()), (ann.clone(), "Firefox"));
    store.people.set_role(manage(NOON), ann.id, Role::Partner).await.unwrap();
    let found = store.sessions.active_session(session, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!(found.person.role, Role::Partner);
    assert!(!is_open(&store, token(), NOON).await, "another token opens nothing");
}

pub async fn session_expires_by_idle_and_absolute_timeout(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    let (idle, used) = (start(&store, &ann, NOON).await, start(&store, &ann, NOON).await);
    let minutes = |count: i64| after_s(count * 60);
    assert!(is_open(&store, used, minutes(20)).await);
    assert!(!is_open(&store, idle, minutes(30)).await);
    for count in (40..720).step_by(20) {
        assert!(is_open(&store, used, minutes(count)).await, "after {count} minutes");
    }
    assert!(!is_open(&store, used, minutes(720)).await, "twelve hours are the end");
    assert_eq!(store.sessions.delete_expired_sessions(TIMES, minutes(720), 100).await.unwrap(), 2);
}

pub async fn sessions_list_with_ip_and_end_singly_or_all(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, ben) =
        (sign_in(&store, "ann", Role::Consultant).await, sign_in(&store, "ben", Role::Consultant).await);
    let (first, second) = (start(&store, &ann, NOON).await, start(&store, &ann, after_s(1)).await);
    let bens = start(&store, &ben, NOON).await;
    store.sessions.active_session(first, "198.51.100.7", TIMES, after_s(2)).await.unwrap().unwrap();
    let listed = store.sessions.list_sessions(ann.id, TIMES, after_s(3)).await.unwrap();
    let addresses: Vec<_> = listed.iter().map(|session| session.ip_address.as_str()).collect();
    assert_eq!(addresses, ["198.51.100.7", "192.0.2.1"]);

    assert!(
        !store.sessions.end_session(ben.id, listed[0].id, &origin(after_s(3))).await.unwrap(),
        "nobody ends another's"
    );
    assert!(store.sessions.end_session(ann.id, listed[0].id, &origin(after_s(3))).await.unwrap());
    assert!(!is_open(&store, first, after_s(3)).await && is_open(&store, second, after_s(3)).await);
    let third = start(&store, &ann, after_s(3)).await;
    let current = store.sessions.list_sessions(ann.id, TIMES, after_s(3)).await.unwrap()[0].id;
    assert_eq!(store.sessions.end_all_sessions(ann.id, Some(current), &origin(after_s(3))).await.unwrap(), 1);
    assert!(!is_open(&store, second, after_s(3)).await && is_open(&store, third, after_s(3)).await);
    assert_eq!(store.sessions.end_all_sessions(ann.id, None, &origin(after_s(3))).await.unwrap(), 1);
    assert!(!is_open(&store, third, after_s(3)).await);
    assert!(!is_open(&store, second, after_s(3)).await && is_open(&store, bens, after_s(3)).await);
}

pub async fn password_change_ends_only_that_identitys_sessions(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = sign_in(&store, "ann", Role::Consultant).await;
    let twin = VerifiedIdentity {
        identity: Identity { issuer: "https://other.example".to_owned(), subject: "ann".to_owned() },
        email: ann.email.clone(),
        role: Role::Consultant,
        origin: origin(NOON),
    };
    let twin = store.people.sign_in(twin).await.unwrap();
    let (first, second) = (start(&store, &ann, NOON).await, start(&store, &ann, NOON).await);
    let twins = start(&store, &twin, NOON).await;
    let (pending, bens_pending) = (begin_ok(&store, "ann").await, begin_ok(&store, "ben").await);
    assert_eq!(
        store.session_revoker.end_sessions_of_identity(&ann.identity, &origin(NOON)).await.unwrap(),
        2
    );
    assert!(!is_open(&store, first, NOON).await && !is_open(&store, second, NOON).await);
    assert!(is_open(&store, twins, NOON).await, "another provider's identity is another person");
    assert!(store.sign_ins.pending_email_code(pending.hash(), NOON).await.unwrap().is_none());
    assert!(store.sign_ins.pending_email_code(bens_pending.hash(), NOON).await.unwrap().is_some());
    assert_eq!(
        store.session_revoker.end_sessions_of_identity(&identity("nobody"), &origin(NOON)).await.unwrap(),
        0
    );
}

pub async fn pending_sign_in_is_consumed_once_before_expiry(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let sign_in = PendingSignIn {
        state: "state".to_owned(),
        nonce: "nonce".to_owned(),
        pkce_verifier: "verifier".to_owned(),
        return_to: LocalPath::parse("/clients/7").unwrap(),
        purpose: SignInPurpose::SignIn,
        expires_at: after_s(600),
    };
    let (one, late) = (token(), token());
    store.sign_ins.begin_sign_in(one, sign_in.clone()).await.unwrap();
    store.sign_ins.begin_sign_in(late, sign_in.clone()).await.unwrap();
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.sign_ins.consume_sign_in(one, NOON).await.unwrap() })
        })
        .collect();
    let mut taken = Vec::new();
    for outcome in racing {
        taken.extend(outcome.await.unwrap());
    }
    assert_eq!(taken, [sign_in]);
    assert_eq!(store.sign_ins.consume_sign_in(late, after_s(600)).await.unwrap(), None);
}

fn pending(subject: &str, secret: &SecretToken, code: &str) -> PendingEmailCode {
    PendingEmailCode {
        identity: identity(subject),
        email: address(&format!("{subject}@example.com")),
        is_email_verified: true,
        directory_role: None,
        authentication: SessionAuthentication::at(NOON),
        return_to: LocalPath::parse("/").unwrap(),
        code: SentEmailCode {
            hash: secret.hash_with(code),
            expires_at: after_s(600),
            sent: 1,
            sent_at: NOON,
        },
        is_email_sent: false,
    }
}

async fn begin(store: &Store, subject: &str, now: UnixMillis) -> (SecretToken, CodeEmailOutcome) {
    begin_claiming(store, subject, &format!("{subject}@example.com"), now).await
}

async fn begin_claiming(
    store: &Store,
    subject: &str,
    email: &str,
    now: UnixMillis,
) -> (SecretToken, CodeEmailOutcome) {
    let secret = SecretToken::generate(&OsRandomness);
    let mut pending = pending(subject, &secret, "123456");
    pending.email = address(email);
    pending.code.expires_at = UnixMillis(now.0 + 600_000);
    let sending = store.sign_ins.begin_pending_email_code(secret.hash(), pending, now).await.unwrap();
    (secret, sending)
}

async fn begin_ok(store: &Store, subject: &str) -> SecretToken {
    let (secret, sending) = begin(store, subject, NOON).await;
    assert_eq!(sending, CodeEmailOutcome::Allowed);
    secret
}

async fn verify_code(store: &Store, secret: &SecretToken, code: &str, now: UnixMillis) -> CodeOutcome {
    store.sign_ins.verify_code(secret.hash(), secret.hash_with(code), &origin(now)).await.unwrap()
}

pub async fn correct_code_is_accepted_once_and_never_after_expiry(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let secret = begin_ok(&store, "ann").await;
    assert!(matches!(verify_code(&store, &secret, "123456", after_s(600)).await, CodeOutcome::Gone));
    assert!(matches!(verify_code(&store, &secret, "123457", NOON).await, CodeOutcome::Rejected { left: 4 }));
    let found = store.sign_ins.pending_email_code(secret.hash(), NOON).await.unwrap().unwrap();
    assert!(found.email == address("ann@example.com") && !found.is_email_sent);
    let hash = secret.hash_with("123456");
    assert!(store.sign_ins.mark_code_sent(secret.hash(), hash, after_s(600), NOON).await.unwrap());
    let found = store.sign_ins.pending_email_code(secret.hash(), NOON).await.unwrap().unwrap();
    assert_eq!((found.is_email_sent, found.code.sent_at), (true, NOON));
    let right = verify_code(&store, &secret, "123456", NOON).await;
    assert!(matches!(right, CodeOutcome::Accepted(pending) if pending.identity == identity("ann")));
    assert!(matches!(verify_code(&store, &secret, "123456", NOON).await, CodeOutcome::Gone));
}

pub async fn concurrent_correct_codes_have_one_winner(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let secret = begin_ok(&store, "ann").await;
    let racing: Vec<_> = (0..12)
        .map(|_| {
            let (store, secret) = (Arc::clone(&store), secret.clone());
            tokio::spawn(async move { verify_code(&store, &secret, "123456", NOON).await })
        })
        .collect();
    let mut passed = 0;
    for outcome in racing {
        match outcome.await.unwrap() {
            CodeOutcome::Accepted(_) => passed += 1,
            CodeOutcome::Gone => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(passed, 1);
}

pub async fn wrong_codes_count_per_identity_across_sign_ins(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut secrets = Vec::new();
    for _ in 0..20 {
        secrets.push(begin_ok(&store, "ann").await);
    }
    let other = begin_ok(&store, "ben").await;
    let racing: Vec<_> = secrets
        .iter()
        .map(|secret| {
            let (store, secret) = (Arc::clone(&store), secret.clone());
            tokio::spawn(async move { verify_code(&store, &secret, "000000", NOON).await })
        })
        .collect();
    let (mut wrong, mut news) = (Vec::new(), 0);
    for outcome in racing {
        match outcome.await.unwrap() {
            CodeOutcome::Rejected { left } => wrong.push(left),
            CodeOutcome::LockedOut { is_first, .. } => news += u32::from(is_first),
            CodeOutcome::Gone => {}
            CodeOutcome::Accepted(_) => panic!("a wrong code passed"),
        }
    }
    wrong.sort_unstable();
    assert_eq!((wrong.as_slice(), news), (&[1, 2, 3, 4][..], 1));
    for secret in &secrets {
        assert!(matches!(verify_code(&store, secret, "123456", NOON).await, CodeOutcome::Gone));
    }
    let until = UnixMillis(NOON.0 + WRONG_CODE_LOCKOUT.as_millis() as i64);
    let (late, rejected) = begin(&store, "ann", after_s(300)).await;
    assert_eq!(rejected, CodeEmailOutcome::LockedOut { until });
    assert!(matches!(verify_code(&store, &late, "123456", after_s(300)).await, CodeOutcome::Gone));
    assert_eq!(begin(&store, "ann", until).await.1, CodeEmailOutcome::Allowed);
    assert!(matches!(verify_code(&store, &other, "654321", NOON).await, CodeOutcome::Rejected { left: 4 }));
    assert!(
        matches!(verify_code(&store, &other, "123456", NOON).await, CodeOutcome::Accepted(_)),
        "others are not touched"
    );
    assert_eq!(MAX_WRONG_CODES, 5);
}

pub async fn wrong_codes_and_emails_are_bounded_in_a_day(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (mut now, mut wrong) = (NOON, 0);
    let rejected = loop {
        let (secret, outcome) = begin(&store, "ann", now).await;
        if outcome != CodeEmailOutcome::Allowed {
            break outcome;
        }
        for _ in 0..MAX_WRONG_CODES {
            verify_code(&store, &secret, "000000", now).await;
            wrong += 1;
        }
        now = now.after(WRONG_CODE_LOCKOUT);
    };
    let until = after_s(24 * 3600);
    assert_eq!(rejected, CodeEmailOutcome::LockedOut { until });
    assert_eq!(wrong, Throttle::WRONG_CODE_PER_IDENTITY_AND_DAY.limit);
    assert_eq!(begin(&store, "ann", until).await.1, CodeEmailOutcome::Allowed);

    let (mut now, mut sent) = (NOON, 0);
    let rejected = loop {
        match begin(&store, "ben", now).await.1 {
            CodeEmailOutcome::Allowed => sent += 1,
            CodeEmailOutcome::TooMany { until } if until < after_s(24 * 3600) => now = until,
            rejected => break rejected,
        }
    };
    assert_eq!(rejected, CodeEmailOutcome::TooManyToday { until });
    assert_eq!(sent, Throttle::CODE_EMAIL_PER_IDENTITY_AND_DAY.limit);
}

pub async fn strangers_who_claim_a_mailbox_do_not_lock_out_its_person_for_a_day(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    sign_in(&store, "ann", Role::Consultant).await;
    let (mut now, mut wrong) = (NOON, 0);
    'day: for stranger in 0.. {
        let subject = format!("stranger{stranger}");
        let (secret, outcome) = begin_claiming(&store, &subject, "ann@example.com", now).await;
        match outcome {
            CodeEmailOutcome::Allowed => {}
            CodeEmailOutcome::LockedOut { until } if until == after_s(24 * 3600) => break 'day,
            CodeEmailOutcome::LockedOut { until } => now = until,
            other => panic!("{other:?}"),
        }
        for _ in 0..MAX_WRONG_CODES {
            match verify_code(&store, &secret, "000000", now).await {
                CodeOutcome::Gone => break,
                _ => wrong += 1,
            }
        }
    }
    assert_eq!(wrong, Throttle::WRONG_CODE_PER_MAILBOX_AND_DAY.limit);
    let now = now.after(WRONG_CODE_LOCKOUT);
    let outcome = begin_claiming(&store, "newcomer", "ann@example.com", now).await.1;
    assert_eq!(outcome, CodeEmailOutcome::LockedOut { until: after_s(24 * 3600) });
    let (secret, outcome) = begin(&store, "ann", now).await;
    assert_eq!(outcome, CodeEmailOutcome::Allowed);
    let wrong = verify_code(&store, &secret, "000000", now).await;
    assert!(matches!(wrong, CodeOutcome::Rejected { left: 4 }), "{wrong:?}");
    assert!(matches!(verify_code(&store, &secret, "123456", now).await, CodeOutcome::Accepted(_)));
}

pub async fn new_sign_ins_and_codes_do_not_reset_attempts(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for left in [4, 3] {
        let secret = begin_ok(&store, "ann").await;
        let wrong = verify_code(&store, &secret, "000000", NOON).await;
        assert!(matches!(wrong, CodeOutcome::Rejected { left: now } if now == left), "{wrong:?}");
    }
    let secret = begin_ok(&store, "ann").await;
    let after_pause = UnixMillis(NOON.0 + CODE_EMAIL_INTERVAL.as_millis() as i64);
    let hash = secret.hash_with("777777");
    let sending = store.sign_ins.count_code_email(secret.hash(), after_pause).await.unwrap();
    assert_eq!(sending, CodeEmailOutcome::Allowed);
    assert!(store.sign_ins.mark_code_sent(secret.hash(), hash, after_s(700), after_pause).await.unwrap());
    assert!(matches!(
        verify_code(&store, &secret, "123456", after_pause).await,
        CodeOutcome::Rejected { left: 2 }
    ));
    assert!(matches!(
        verify_code(&store, &secret, "123456", after_pause).await,
        CodeOutcome::Rejected { left: 1 }
    ));
    let last = verify_code(&store, &secret, "123456", after_pause).await;
    assert!(matches!(last, CodeOutcome::LockedOut { is_first: true, .. }), "{last:?}");
}

pub async fn owners_sign_in_does_not_reset_attackers_attempts(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (guesser, owner) = (begin_ok(&store, "ann").await, begin_ok(&store, "ann").await);
    for _ in 0..3 {
        assert!(matches!(verify_code(&store, &guesser, "000000", NOON).await, CodeOutcome::Rejected { .. }));
    }
    assert!(matches!(verify_code(&store, &owner, "123457", NOON).await, CodeOutcome::Rejected { left: 1 }));
    assert!(matches!(verify_code(&store, &owner, "123456", NOON).await, CodeOutcome::Accepted(_)));
    let wrong = verify_code(&store, &guesser, "000000", NOON).await;
    assert!(
        matches!(wrong, CodeOutcome::Rejected { left: 1 }),
        "the owner's own slip is forgiven, the guesses are not: {wrong:?}"
    );
    assert!(matches!(verify_code(&store, &guesser, "000000", NOON).await, CodeOutcome::LockedOut { .. }));
}

pub async fn new_code_replaces_previous_and_emails_are_bounded(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let secret = begin_ok(&store, "ann").await;
    let new_code = async |code: &str, now| {
        let sending = store.sign_ins.count_code_email(secret.hash(), UnixMillis(now)).await.unwrap();
        if sending == CodeEmailOutcome::Allowed {
            let (hash, expires_at) = (secret.hash_with(code), UnixMillis(now + 600_000));
            assert!(
                store
                    .sign_ins
                    .mark_code_sent(secret.hash(), hash, expires_at, UnixMillis(now))
                    .await
                    .unwrap()
            );
        }
        sending
    };
    let pause_ms = CODE_EMAIL_INTERVAL.as_millis() as i64;
    let soonest = UnixMillis(NOON.0 + pause_ms);
    assert_eq!(new_code("777777", NOON.0 + pause_ms - 1).await, CodeEmailOutcome::TooSoon(soonest));
    let mut now = NOON.0;
    for number in 2..=MAX_CODE_EMAILS_PER_SIGN_IN {
        now += pause_ms;
        assert_eq!(new_code("777777", now).await, CodeEmailOutcome::Allowed, "letter {number}");
        assert!(matches!(
            new_code("888888", now).await,
            CodeEmailOutcome::TooSoon(_) | CodeEmailOutcome::SignInLimitReached
        ));
    }
    assert_eq!(new_code("888888", now + pause_ms).await, CodeEmailOutcome::SignInLimitReached);
    let now = UnixMillis(now);
    assert!(matches!(verify_code(&store, &secret, "123456", now).await, CodeOutcome::Rejected { .. }));
    assert!(matches!(verify_code(&store, &secret, "777777", now).await, CodeOutcome::Accepted(_)));
    assert_eq!(new_code("888888", now.0 + pause_ms).await, CodeEmailOutcome::Gone);
}

pub async fn unsent_email_keeps_previous_code_and_is_refunded(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let secret = begin_ok(&store, "ann").await;
    store.sign_ins.mark_code_unsent(secret.hash(), NOON).await.unwrap();
    let found = store.sign_ins.pending_email_code(secret.hash(), NOON).await.unwrap().unwrap();
    assert_eq!((found.is_email_sent, found.code.sent), (false, 0));
    let soonest = UnixMillis(NOON.0 + FAILED_CODE_EMAIL_INTERVAL.as_millis() as i64);
    assert_eq!(
        store.sign_ins.count_code_email(secret.hash(), NOON).await.unwrap(),
        CodeEmailOutcome::TooSoon(soonest)
    );
    assert_eq!(
        store.sign_ins.count_code_email(secret.hash(), soonest).await.unwrap(),
        CodeEmailOutcome::Allowed
    );
    let hash = secret.hash_with("777777");
    assert!(store.sign_ins.mark_code_sent(secret.hash(), hash, after_s(600), soonest).await.unwrap());

    // More often than emails may be sent to one identity, one mailbox or in one sign-in.
    let mut now = after_s(60);
    for number in 0..2 * MAX_CODE_EMAILS_PER_MAILBOX {
        assert_eq!(
            store.sign_ins.count_code_email(secret.hash(), now).await.unwrap(),
            CodeEmailOutcome::Allowed,
            "{number}"
        );
        store.sign_ins.mark_code_unsent(secret.hash(), now).await.unwrap();
        now = UnixMillis(now.0 + FAILED_CODE_EMAIL_INTERVAL.as_millis() as i64 / 2);
        assert!(matches!(
            store.sign_ins.count_code_email(secret.hash(), now).await.unwrap(),
            CodeEmailOutcome::TooSoon(_)
        ));
        now = UnixMillis(now.0 + FAILED_CODE_EMAIL_INTERVAL.as_millis() as i64 / 2);
        now = UnixMillis(now.0.min(after_s(599).0));
        if now == after_s(599) {
            break;
        }
    }
    let found = store.sign_ins.pending_email_code(secret.hash(), now).await.unwrap().unwrap();
    assert_eq!((found.code.sent, found.code.sent_at), (1, soonest));
    assert!(matches!(verify_code(&store, &secret, "777777", now).await, CodeOutcome::Accepted(_)));
    assert!(
        !store.sign_ins.mark_code_sent(secret.hash(), hash, after_s(900), now).await.unwrap(),
        "it is over"
    );
    store.sign_ins.mark_code_unsent(secret.hash(), now).await.unwrap();
}

pub async fn identities_sharing_mailbox_share_attempt_and_email_limits(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let owner = begin_ok(&store, "ann").await;
    let mut tried = 0;
    let destroyed = 'all: loop {
        let (secret, sending) = begin_claiming(&store, &format!("eve{tried}"), "ann@example.com", NOON).await;
        assert_eq!(sending, CodeEmailOutcome::Allowed, "after {tried} tries");
        for _ in 1..MAX_WRONG_CODES {
            tried += 1;
            match verify_code(&store, &secret, "000000", NOON).await {
                CodeOutcome::Rejected { .. } => assert!(tried < MAX_WRONG_CODES_PER_MAILBOX, "{tried}"),
                other => break 'all other,
            }
        }
    };
    assert!(matches!(destroyed, CodeOutcome::LockedOut { is_first: true, .. }), "{destroyed:?}");
    assert_eq!(tried, MAX_WRONG_CODES_PER_MAILBOX);
    assert!(matches!(verify_code(&store, &owner, "123456", NOON).await, CodeOutcome::Gone));
    let until = UnixMillis(NOON.0 + WRONG_CODE_LOCKOUT.as_millis() as i64);
    let (_, rejected) = begin_claiming(&store, "another", "ann@example.com", NOON).await;
    assert_eq!(rejected, CodeEmailOutcome::LockedOut { until });
    assert_eq!(
        begin(&store, "ben", NOON).await.1,
        CodeEmailOutcome::Allowed,
        "other mailboxes are not touched"
    );
    assert_eq!(
        begin_claiming(&store, "another", "ann@example.com", until).await.1,
        CodeEmailOutcome::Allowed
    );

    for number in 0..MAX_CODE_EMAILS_PER_MAILBOX {
        let (_, sending) = begin_claiming(&store, &format!("flood{number}"), "ruth@example.com", NOON).await;
        assert_eq!(sending, CodeEmailOutcome::Allowed, "{number}");
    }
    let until = UnixMillis(NOON.0 + CODE_EMAIL_WINDOW.as_millis() as i64);
    let (_, rejected) = begin_claiming(&store, "more", "ruth@example.com", NOON).await;
    assert_eq!(rejected, CodeEmailOutcome::TooMany { until });
}

pub async fn emails_per_identity_are_bounded_until_used_or_expired(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut last = begin_ok(&store, "ann").await;
    for _ in 1..MAX_CODE_EMAILS_PER_IDENTITY {
        last = begin_ok(&store, "ann").await;
    }
    let until = UnixMillis(NOON.0 + CODE_EMAIL_WINDOW.as_millis() as i64);
    assert_eq!(begin(&store, "ann", after_s(60)).await.1, CodeEmailOutcome::TooMany { until });
    assert_eq!(begin(&store, "ben", after_s(60)).await.1, CodeEmailOutcome::Allowed);
    assert!(matches!(verify_code(&store, &last, "123456", after_s(60)).await, CodeOutcome::Accepted(_)));
    assert_eq!(begin(&store, "ann", after_s(60)).await.1, CodeEmailOutcome::Allowed, "a code was used");

    for _ in 0..MAX_CODE_EMAILS_PER_IDENTITY {
        begin_ok(&store, "cat").await;
    }
    assert_eq!(begin(&store, "cat", after_s(60)).await.1, CodeEmailOutcome::TooMany { until });
    assert_eq!(begin(&store, "cat", until).await.1, CodeEmailOutcome::Allowed, "the hour is over");
}

pub async fn oldest_sign_ins_are_deleted_past_limit(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut tokens = Vec::new();
    for number in [3, 1, 4, 2, 5] {
        let sign_in = PendingSignIn {
            state: number.to_string(),
            nonce: "nonce".to_owned(),
            pkce_verifier: "verifier".to_owned(),
            return_to: LocalPath::parse("/").unwrap(),
            purpose: SignInPurpose::SignIn,
            expires_at: after_s(600 + number),
        };
        let token = token();
        store.sign_ins.begin_sign_in(token, sign_in).await.unwrap();
        tokens.push((number, token));
    }
    assert_eq!(store.sign_ins.delete_expired_sign_ins(NOON, 100, 5).await.unwrap(), 0);
    assert_eq!(store.sign_ins.delete_expired_sign_ins(NOON, 100, 3).await.unwrap(), 2);
    let mut left = Vec::new();
    for (number, token) in tokens {
        left.extend(store.sign_ins.consume_sign_in(token, NOON).await.unwrap().map(|_| number));
    }
    assert_eq!(left, [3, 4, 5]);
}

pub async fn expired_sign_ins_are_deleted_in_batches(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for number in 0..5 {
        let sign_in = PendingSignIn {
            state: number.to_string(),
            nonce: "nonce".to_owned(),
            pkce_verifier: "verifier".to_owned(),
            return_to: LocalPath::parse("/").unwrap(),
            purpose: SignInPurpose::SignIn,
            expires_at: after_s(600),
        };
        store.sign_ins.begin_sign_in(token(), sign_in).await.unwrap();
        begin_ok(&store, &format!("person{number}")).await;
    }
    assert_eq!(store.sign_ins.delete_expired_sign_ins(after_s(599), 100, 100).await.unwrap(), 0);
    assert_eq!(store.sign_ins.delete_expired_sign_ins(after_s(600), 3, 100).await.unwrap(), 6);
    assert_eq!(store.sign_ins.delete_expired_sign_ins(after_s(600), 3, 100).await.unwrap(), 4);
    assert_eq!(
        store.throttles.delete_expired_throttles(after_s(600), 100).await.unwrap(),
        20,
        "no code was wrong"
    );
    let all_deleted = UnixMillis(NOON.0 + CODE_EMAIL_WINDOW.as_millis() as i64);
    assert_eq!(
        store.throttles.delete_expired_throttles(all_deleted, 100).await.unwrap(),
        10,
        "counts of emails in an hour"
    );
    assert_eq!(store.throttles.delete_expired_throttles(all_deleted, 100).await.unwrap(), 0);
    let next_day = after_s(24 * 3600);
    assert_eq!(store.throttles.delete_expired_throttles(next_day, 100).await.unwrap(), 10, "and in a day");
    assert_eq!(store.sign_ins.delete_expired_sign_ins(all_deleted, 100, 100).await.unwrap(), 0);
}
