//! Conformance: how the people of sessions authenticated, sign-out by the identity provider, and roles from a directory.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{events, origin};
use crate::invitations::{invitation, permit};
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, EventKind, Identity, LocalPath, MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY, OsRandomness, Person,
    Principal, Role, SecretToken, SessionTimeouts, TokenHash, UnixMillis,
};
use chancery_store::{
    CodeEmailOutcome, CodeOutcome, LogoutTarget, NewSession, PendingEmailCode, ProviderLogout,
    ProviderLogoutOutcome, RenewedSession, SentEmailCode, SessionAuthentication, Store, VerifiedIdentity,
};
use std::sync::Arc;
use std::time::Duration;

const ISSUER: &str = "https://id.example";
const TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

fn verified(subject: &str, role: Role) -> VerifiedIdentity {
    let email: EmailAddress = format!("{subject}@example.com").parse().unwrap();
    let identity = Identity { issuer: ISSUER.to_owned(), subject: subject.to_owned() };
    VerifiedIdentity { identity, email, role, origin: origin(NOON) }
}

async fn person(store: &Store, subject: &str) -> Person {
    store.people.sign_in(verified(subject, Role::Consultant)).await.unwrap()
}

async fn start(store: &Store, person: &Person, sid: Option<&str>, binding: Option<TokenHash>) -> TokenHash {
    let token = token();
    let new = NewSession {
        token,
        binding,
        person: person.id,
        authentication: SessionAuthentication {
            authenticated_at: NOON,
            sid: sid.map(str::to_owned),
            id_token: Some(b"sealed".to_vec()),
        },
        origin: origin(NOON),
        ip_address: "192.0.2.1".to_owned(),
        user_agent: "Firefox".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    token
}

async fn is_open(store: &Store, token: TokenHash) -> bool {
    store.sessions.active_session(token, "192.0.2.1", TIMES, NOON).await.unwrap().is_some()
}

async fn is_open_bound(store: &Store, session: TokenHash, binding: TokenHash) -> bool {
    let sessions = &store.sessions;
    sessions.active_bound_session(session, binding, "192.0.2.1", TIMES, NOON).await.unwrap().is_some()
}

async fn directory_sign_in(store: &Store, subject: &str, role: Role) -> Role {
    store.people.sign_in_from_directory(verified(subject, role)).await.unwrap().role
}

async fn begin_code(
    store: &Store,
    subject: &str,
    sid: Option<&str>,
    now: UnixMillis,
) -> (SecretToken, CodeEmailOutcome) {
    let secret = SecretToken::generate(&OsRandomness);
    let verified = verified(subject, Role::Consultant);
    let pending = PendingEmailCode {
        identity: verified.identity,
        email: verified.email,
        is_email_verified: true,
        directory_role: Some(Role::Partner),
        authentication: SessionAuthentication {
            authenticated_at: NOON,
            sid: sid.map(str::to_owned),
            id_token: Some(b"sealed".to_vec()),
        },
        return_to: LocalPath::parse("/").unwrap(),
        code: SentEmailCode {
            hash: secret.hash_with("123456"),
            expires_at: UnixMillis(now.0 + 600_000),
            sent: 1,
            sent_at: now,
        },
        is_email_sent: false,
    };
    let outcome = store.sign_ins.begin_pending_email_code(secret.hash(), pending, now).await.unwrap();
    (secret, outcome)
}

async fn is_pending(store: &Store, secret: &SecretToken) -> bool {
    store.sign_ins.pending_email_code(secret.hash(), NOON).await.unwrap().is_some()
}

fn logout(target: LogoutTarget) -> ProviderLogout {
    ProviderLogout { token_id: token(), token_expires_at: after_s(300), issuer: ISSUER.to_owned(), target }
}

pub async fn logout_token_ends_sessions_of_its_sid_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, ben) = (person(&store, "ann").await, person(&store, "ben").await);
    let (here, there) =
        (start(&store, &ann, Some("s1"), None).await, start(&store, &ann, Some("s2"), None).await);
    let bens = start(&store, &ben, Some("s1"), None).await;
    let (waiting, _) = begin_code(&store, "ann", Some("s1"), NOON).await;
    let (other, _) = begin_code(&store, "ann", Some("s2"), NOON).await;
    let of_ann =
        logout(LogoutTarget::ProviderSession { sid: "s1".to_owned(), subject: Some("ann".to_owned()) });
    let ended = store.sessions.end_sessions_by_provider(&of_ann, &origin(NOON)).await.unwrap();
    assert_eq!(ended, ProviderLogoutOutcome::Ended(1));
    assert!(!is_open(&store, here).await && is_open(&store, there).await && is_open(&store, bens).await);
    assert!(!is_pending(&store, &waiting).await && is_pending(&store, &other).await);
    let again = store.sessions.end_sessions_by_provider(&of_ann, &origin(NOON)).await.unwrap();
    assert_eq!(again, ProviderLogoutOutcome::Replayed);

    let elsewhere =
        ProviderLogout { issuer: "https://other.example".to_owned(), ..logout(of_ann.target.clone()) };
    let ended = store.sessions.end_sessions_by_provider(&elsewhere, &origin(NOON)).await.unwrap();
    assert_eq!(ended, ProviderLogoutOutcome::Ended(0), "another issuer's sessions are its own");
    let anyone = logout(LogoutTarget::ProviderSession { sid: "s1".to_owned(), subject: None });
    let ended = store.sessions.end_sessions_by_provider(&anyone, &origin(NOON)).await.unwrap();
    assert_eq!(ended, ProviderLogoutOutcome::Ended(1));
    assert!(!is_open(&store, bens).await);
    let kinds: Vec<_> = events(&store).await.iter().map(|row| row.event.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::SignedOutByProvider).count(), 2);

    let deleted = store.sessions.delete_expired_logout_tokens(after_s(300), 10).await.unwrap();
    assert_eq!(deleted, 3);
}

pub async fn logout_token_without_sid_ends_everything_of_the_subject(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, ben) = (person(&store, "ann").await, person(&store, "ben").await);
    let (one, two) = (start(&store, &ann, Some("s1"), None).await, start(&store, &ann, None, None).await);
    let bens = start(&store, &ben, None, None).await;
    let (waiting, _) = begin_code(&store, "ann", None, NOON).await;
    let of_ann = logout(LogoutTarget::Subject("ann".to_owned()));
    let ended = store.sessions.end_sessions_by_provider(&of_ann, &origin(NOON)).await.unwrap();
    assert_eq!(ended, ProviderLogoutOutcome::Ended(2));
    assert!(!is_open(&store, one).await && !is_open(&store, two).await && is_open(&store, bens).await);
    assert!(!is_pending(&store, &waiting).await);
}

pub async fn concurrent_logout_tokens_have_one_winner(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = person(&store, "ann").await;
    start(&store, &ann, None, None).await;
    let of_ann = logout(LogoutTarget::Subject("ann".to_owned()));
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let (store, of_ann) = (Arc::clone(&store), of_ann.clone());
            tokio::spawn(async move {
                store.sessions.end_sessions_by_provider(&of_ann, &origin(NOON)).await.unwrap()
            })
        })
        .collect();
    let mut won = 0;
    for outcome in racing {
        won += usize::from(outcome.await.unwrap() == ProviderLogoutOutcome::Ended(1));
    }
    assert_eq!(won, 1);
}

pub async fn renewed_session_has_a_new_token_and_goes_on(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, ben) = (person(&store, "ann").await, person(&store, "ben").await);
    let old = start(&store, &ann, Some("s1"), None).await;
    let before = store.sessions.active_session(old, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    let renewed = RenewedSession {
        person: ann.id,
        old_token: old,
        token: token(),
        binding: None,
        authentication: SessionAuthentication {
            authenticated_at: after_s(60),
            sid: Some("s2".to_owned()),
            id_token: Some(b"newer".to_vec()),
        },
        confirmed_at: after_s(61),
        step_up: Some(origin(after_s(61))),
    };
    let of_ben = RenewedSession { person: ben.id, ..renewed.clone() };
    assert!(!store.sessions.renew_session(of_ben).await.unwrap(), "nobody renews another's session");
    assert!(store.sessions.renew_session(renewed.clone()).await.unwrap());
    assert!(!is_open(&store, old).await);
    let after =
        store.sessions.active_session(renewed.token, "192.0.2.1", TIMES, NOON).await.unwrap().unwrap();
    assert_eq!((after.session.id, after.session.started_at), (before.session.id, before.session.started_at));
    assert_eq!((after.session.authenticated_at, after.session.confirmed_at), (after_s(60), after_s(61)));
    assert_eq!(store.sessions.stored_id_token(renewed.token).await.unwrap().unwrap(), b"newer");
    assert!(!store.sessions.renew_session(renewed.clone()).await.unwrap(), "the old token is worth nothing");
    let confirmed = RenewedSession { old_token: renewed.token, step_up: None, ..renewed };
    assert!(store.sessions.renew_session(confirmed).await.unwrap());
    let step_ups = events(&store).await.into_iter();
    let step_ups = step_ups.filter(|row| row.event.kind == EventKind::Reauthenticated);
    let step_ups: Vec<_> = step_ups.map(|row| (row.event.subject, row.origin.at)).collect();
    assert_eq!(step_ups, [(Some(ann.id), after_s(61))], "the step-up alone is audited");
}

pub async fn bound_session_needs_its_second_cookie(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = person(&store, "ann").await;
    let binding = token();
    let (bound, unbound) =
        (start(&store, &ann, None, Some(binding)).await, start(&store, &ann, None, None).await);
    assert!(is_open_bound(&store, bound, binding).await);
    assert!(!is_open_bound(&store, bound, token()).await && !is_open_bound(&store, unbound, binding).await);
    assert!(is_open(&store, bound).await, "the session alone suffices where no binding is required");
}

pub async fn directory_role_follows_up_and_down_except_last_partner(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    assert_eq!(directory_sign_in(&store, "ann", Role::Partner).await, Role::Partner);
    assert_eq!(
        directory_sign_in(&store, "ann", Role::Consultant).await,
        Role::Partner,
        "she is the last partner"
    );
    assert_eq!(directory_sign_in(&store, "ben", Role::Consultant).await, Role::Consultant);
    assert_eq!(directory_sign_in(&store, "ben", Role::Partner).await, Role::Partner);
    assert_eq!(directory_sign_in(&store, "ann", Role::Consultant).await, Role::Consultant);
    assert_eq!(directory_sign_in(&store, "ben", Role::Consultant).await, Role::Partner);
    let changes: Vec<_> = events(&store)
        .await
        .iter()
        .filter(|row| row.event.kind == EventKind::RoleChanged)
        .map(|row| (row.event.old_role.unwrap(), row.event.new_role.unwrap()))
        .collect();
    assert_eq!(changes, [(Role::Consultant, Role::Partner), (Role::Partner, Role::Consultant)]);
}

pub async fn directory_role_outranks_an_invitation(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for name in ["nora", "omar"] {
        let new = invitation(&format!("{name}@example.com"), Role::Partner);
        store.invitations.invite_person(permit(Principal::Operator, NOON), &new).await.unwrap();
    }
    assert_eq!(directory_sign_in(&store, "nora", Role::Consultant).await, Role::Consultant);
    assert_eq!(
        person(&store, "omar").await.role,
        Role::Partner,
        "without a directory, the invitation counts"
    );
    assert!(store.invitations.list_invitations(NOON).await.unwrap().is_empty(), "both are used");
}

pub async fn daily_code_emails_are_bounded_even_if_codes_are_used(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for number in 0..MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY {
        let (secret, outcome) = begin_code(&store, "ann", None, NOON).await;
        assert_eq!(outcome, CodeEmailOutcome::Allowed, "{number}");
        let used = store
            .sign_ins
            .verify_code(secret.hash(), secret.hash_with("123456"), &origin(NOON))
            .await
            .unwrap();
        assert!(matches!(used, CodeOutcome::Accepted(_)), "{used:?}");
    }
    let until = after_s(86_400);
    let (_, outcome) = begin_code(&store, "ann", None, after_s(3_600)).await;
    assert_eq!(outcome, CodeEmailOutcome::TooManyToday { until });
    assert_eq!(begin_code(&store, "ben", None, after_s(3_600)).await.1, CodeEmailOutcome::Allowed);
    assert_eq!(begin_code(&store, "ann", None, until).await.1, CodeEmailOutcome::Allowed);
}
