//! `chancery user`, while another process has the store open.

use crate::server::Firm;
use chancery_domain::{
    Action, AuditEvent, AuditedDecision, Clock, EventKind, EventOrigin, Identity, OsRandomness, Person,
    Principal, Profile, Role, SecretToken, SessionTimeouts, SystemClock, TokenHash, UnixMillis,
};
use chancery_store::{
    MessageKind, NewProviderAccount, NewProviderSession, NewSession, PasswordHash, SessionAuthentication,
    Store, VerifiedIdentity,
};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const NOON: UnixMillis = UnixMillis(1_794_571_200_000);

async fn open(firm: &Firm) -> Arc<Store> {
    firm.run(&["account", "create", "Hale & Ward"]);
    Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap())
}

async fn sign_in(store: &Store, subject: &str, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: "https://id.example.com".to_owned(), subject: subject.to_owned() };
    store
        .people
        .sign_in(VerifiedIdentity {
            identity,
            email: email.parse().unwrap(),
            role,
            origin: EventOrigin::local(NOON, &OsRandomness),
        })
        .await
        .unwrap()
}

async fn start_session(store: &Store, person: &Person) -> TokenHash {
    let token = SecretToken::generate(&OsRandomness).hash();
    let (ip_address, user_agent) = ("192.0.2.1".to_owned(), "Firefox".to_owned());
    let new = NewSession {
        token,
        binding: None,
        person: person.id,
        authentication: SessionAuthentication::at(NOON),
        origin: EventOrigin::local(NOON, &OsRandomness),
        ip_address,
        user_agent,
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    token
}

async fn is_signed_in(store: &Store, token: TokenHash) -> bool {
    let times = SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    store.sessions.active_session(token, "192.0.2.1", times, NOON).await.unwrap().is_some()
}

/// Creates the person's account at the built-in provider and signs a browser in there.
async fn sign_in_at_provider(store: &Store, person: &Person) -> TokenHash {
    let new = NewProviderAccount {
        subject: person.identity.subject.clone(),
        email: person.email.clone(),
        password_hash: PasswordHash("x".to_owned()),
        at: NOON,
    };
    store.provider_accounts.create_provider_account(new).await.unwrap();
    start_at_provider(store, person).await
}

async fn start_at_provider(store: &Store, person: &Person) -> TokenHash {
    let token = SecretToken::generate(&OsRandomness).hash();
    let subject = person.identity.subject.clone();
    let sid = SecretToken::generate(&OsRandomness).reveal().to_owned();
    let new =
        NewProviderSession { token, subject, password_version: 1, sid, amr: "pwd".to_owned(), at: NOON };
    store.provider_sessions.start_provider_session(new).await.unwrap();
    assert!(is_known_at_provider(store, token).await);
    token
}

async fn is_known_at_provider(store: &Store, token: TokenHash) -> bool {
    let times = SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    store.provider_sessions.provider_session(token, times, NOON).await.unwrap().is_some()
}

#[tokio::test]
async fn user_commands_work_while_the_database_is_open_elsewhere() {
    let firm = Firm::new();
    let store = open(&firm).await;
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    let ann = sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    let list = firm.json(&["user", "list", "--json"]);
    assert_eq!(list[0]["email"], "ann@example.com");
    assert_eq!((&list[1]["email"], &list[1]["role"]), (&json!("ruth@example.com"), &json!("partner")));
    assert_eq!((&list[0]["issuer"], &list[0]["subject"]), (&json!("https://id.example.com"), &json!("2")));
    assert!(firm.run(&["user", "list"]).contains("ann@example.com   consultant"));

    let (first, second) = (start_session(&store, &ann).await, start_session(&store, &ann).await);
    let at_provider = sign_in_at_provider(&store, &ann).await;
    assert!(firm.run(&["user", "sign-out", "ANN@example.com"]).contains("2 sessions ended"));
    assert!(!is_signed_in(&store, first).await && !is_signed_in(&store, second).await);
    assert!(!is_known_at_provider(&store, at_provider).await, "or one click would sign in again");
    assert!(firm.run(&["user", "sign-out", "ann@example.com"]).contains("had no active sessions"));

    assert!(firm.run(&["user", "role", "ann@example.com", "partner"]).contains("is now a partner"));
    assert!(firm.run(&["user", "role", "ann@example.com", "consultant"]).contains("is now a consultant"));
    let third = start_session(&store, &ann).await;
    let at_provider = start_at_provider(&store, &ann).await;
    assert!(firm.run(&["user", "remove", "ann@example.com"]).contains("removed: all sessions ended"));
    assert!(!is_signed_in(&store, third).await && !is_known_at_provider(&store, at_provider).await);
    assert!(firm.fail(&["user", "role", "ann@example.com", "partner"]).contains("no user with the address"));
    store.close().await;
}

#[tokio::test]
async fn user_command_changes_are_audited_as_the_operator() {
    let firm = Firm::new();
    let store = open(&firm).await;
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    let ann = sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    firm.run(&["user", "role", "ann@example.com", "partner"]);
    for command in ["sign-out", "remove", "restore"] {
        firm.run(&["user", command, "ann@example.com"]);
    }
    let changes = decided(&store, Action::ManageTeam).await;
    assert!(changes.iter().all(|row| row.access_request.by == Principal::Operator), "{changes:?}");
    let effects: Vec<AuditEvent> = changes.iter().map(|row| row.effect.unwrap()).collect();
    let role_changed = AuditEvent {
        old_role: Some(Role::Consultant),
        new_role: Some(Role::Partner),
        ..AuditEvent::new(EventKind::RoleChanged, ann.id)
    };
    let of = |kind| AuditEvent::new(kind, ann.id);
    assert_eq!(
        effects,
        [
            role_changed,
            of(EventKind::SessionsEnded),
            of(EventKind::PersonRemoved),
            of(EventKind::PersonRestored)
        ]
    );
    assert!(firm.run(&["verify"]).contains(" rows: OK"));
    store.close().await;
}

#[tokio::test]
async fn removed_user_is_listed_and_can_be_restored() {
    let firm = Firm::new();
    let store = open(&firm).await;
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    let ann = sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    let not_removed = firm.fail(&["user", "restore", "ann@example.com"]);
    assert!(not_removed.contains("no removed user with the address ann@example.com"), "{not_removed}");
    let session = start_session(&store, &ann).await;
    firm.run(&["user", "remove", "ann@example.com"]);
    let list = firm.json(&["user", "list", "--json"]);
    assert_eq!((&list[0]["email"], &list[0]["removed_at"]), (&json!("ruth@example.com"), &json!(null)));
    assert_eq!(list[1]["email"], "ann@example.com");
    assert!(list[1]["removed_at"].as_str().unwrap().ends_with('Z'), "{list}");
    assert!(firm.run(&["user", "list"]).contains("ann@example.com   removed"));

    let restored = firm.run(&["user", "restore", "ANN@example.com"]);
    assert!(restored.contains("restored as a consultant"), "{restored}");
    assert!(!is_signed_in(&store, session).await, "what has ended stays so");
    sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    assert_eq!(firm.json(&["user", "list", "--json"])[0]["removed_at"], json!(null));
    store.close().await;
}

#[tokio::test]
async fn configured_partner_cannot_be_demoted() {
    let firm = Firm::new();
    let store = open(&firm).await;
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    sign_in(&store, "2", "ann@example.com", Role::Partner).await;
    let config = firm.data().join("partners.toml");
    let portal = "[portal]\ncompany_domain = \"example.com\"\npartners = [\"ruth@example.com\"]\n";
    std::fs::write(&config, portal).unwrap();
    let config = config.to_str().unwrap();
    let rejected = firm.fail(&["--config", config, "user", "role", "ruth@example.com", "consultant"]);
    assert!(rejected.contains("listed in portal.partners; remove the address there first"), "{rejected}");
    assert_eq!(store.people.list_people().await.unwrap()[1].role, Role::Partner);
    firm.run(&["--config", config, "user", "role", "ann@example.com", "consultant"]);
    firm.run(&["user", "role", "ann@example.com", "partner"]);
    firm.run(&["user", "role", "ruth@example.com", "consultant"]);
    store.close().await;
}

#[tokio::test]
async fn last_partner_cannot_be_removed_or_demoted() {
    let firm = Firm::new();
    let store = open(&firm).await;
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    for command in
        [&["user", "remove", "ruth@example.com"][..], &["user", "role", "ruth@example.com", "consultant"]]
    {
        assert!(firm.fail(command).contains("this is the last partner; promote another partner first"));
    }
    firm.run(&["user", "role", "ann@example.com", "partner"]);
    firm.run(&["user", "remove", "ruth@example.com"]);
    assert!(firm.fail(&["user", "remove", "ann@example.com"]).contains("last partner"));
    store.close().await;
}

#[tokio::test]
async fn ambiguous_user_email_requires_a_subject() {
    let firm = Firm::new();
    let store = open(&firm).await;
    for subject in ["17", "18"] {
        sign_in(&store, subject, "ann@example.com", Role::Consultant).await;
    }
    let error = firm.fail(&["user", "remove", "ann@example.com"]);
    for part in ["2 users have the address", "--subject", "17 at https://id.example.com, 18 at"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(firm.fail(&["user", "remove", "ann@example.com", "--subject", "19"]).contains("found: 17 at"));
    let issuer = "https://id.example.com";
    firm.run(&["user", "role", "ann@example.com", "partner", "--subject", "18", "--issuer", issuer]);
    let roles = store.people.list_people().await.unwrap().into_iter();
    let roles: Vec<_> = roles.map(|person| (person.identity.subject, person.role)).collect();
    assert_eq!(roles, [("17".to_owned(), Role::Consultant), ("18".to_owned(), Role::Partner)]);
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    let removed = firm.run(&["user", "remove", "ann@example.com", "--subject", "17", "--issuer", issuer]);
    assert_eq!(
        removed.matches("removed: all sessions ended").count(),
        2,
        "everyone with the mailbox: {removed}"
    );
    let people = store.people.list_people().await.unwrap();
    assert_eq!(people.len(), 1, "{people:?}");
    store.close().await;
}

/// The messages that wait for a server to send them: destination and payload.
async fn waiting(store: &Store) -> Vec<(String, String)> {
    let (claim, later) = (SecretToken::generate(&OsRandomness), UnixMillis(4_000_000_000_000));
    let claimed =
        store.outbox.claim_messages((MessageKind::Email, None), &claim, later, later, 100).await.unwrap();
    claimed.into_iter().map(|claimed| (claimed.message.destination, claimed.message.payload)).collect()
}

/// All decisions of this action, oldest first.
async fn decided(store: &Store, action: Action) -> Vec<AuditedDecision> {
    let rows = store.all_audit_rows().await.unwrap();
    let decided = rows.iter().filter_map(|row| row.as_decision());
    decided.filter(|row| row.access_request.action == action).cloned().collect()
}

#[tokio::test]
async fn invited_user_gets_an_email_and_the_role() {
    let firm = Firm::new();
    let store = open(&firm).await;
    sign_in(&store, "1", "ruth@example.com", Role::Partner).await;
    let config = firm.data().join("portal.toml");
    let portal = "[portal]\ncompany_domain = \"example.com\"\npublic_url = \"https://portal.example.com\"\n";
    std::fs::write(&config, portal).unwrap();
    let config = config.to_str().unwrap();
    let invite = |email: &'static str| ["--config", config, "user", "invite", email, "--role", "partner"];
    let outside = firm.fail(&invite("nora@evil.example"));
    assert!(outside.contains("not at portal.company_domain (example.com)"), "{outside}");
    let known = firm.fail(&invite("ruth@example.com"));
    assert!(known.contains("ruth@example.com is already on the team"), "{known}");
    let invited = firm.run(&invite("Nora@example.com"));
    assert!(invited.contains("nora@example.com invited as a partner"), "{invited}");
    let waiting = waiting(&store).await;
    let [(to, text)] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!(to, "nora@example.com");
    assert!(text.contains("Your administrator") && text.contains("https://portal.example.com/"), "{text}");
    let mut rows = decided(&store, Action::InvitePerson).await;
    rows.retain(|row| row.effect.is_some());
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (rows[0].access_request.by, rows[0].effect.unwrap().kind),
        (Principal::Operator, EventKind::PersonInvited)
    );
    // The invitation is as old as the command, which the system's clock dates.
    let identity = Identity { issuer: "https://id.example.com".to_owned(), subject: "2".to_owned() };
    let origin = EventOrigin::local(SystemClock.now(), &OsRandomness);
    let (email, role) = ("nora@example.com".parse().unwrap(), Role::Consultant);
    let nora = store.people.sign_in(VerifiedIdentity { identity, email, role, origin }).await.unwrap();
    assert_eq!(nora.role, Role::Partner);
    store.close().await;
}

#[tokio::test]
async fn reset_factors_ends_all_sessions_and_tells_the_user() {
    let firm = Firm::new();
    let store = open(&firm).await;
    let ann = sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    let none = firm.fail(&["user", "reset-factors", "ann@example.com"]);
    assert!(none.contains("no account at the built-in identity provider"), "{none}");
    let (session, in_portal) = (sign_in_at_provider(&store, &ann).await, start_session(&store, &ann).await);
    let reset = firm.run(&["user", "reset-factors", "ANN@example.com"]);
    assert!(reset.contains("second factors of ann@example.com reset"), "{reset}");
    assert!(reset.contains("all sessions ended"), "{reset}");
    assert!(!is_known_at_provider(&store, session).await && !is_signed_in(&store, in_portal).await);
    let waiting = waiting(&store).await;
    let [(to, text)] = &waiting[..] else { panic!("{waiting:?}") };
    assert!(to == "ann@example.com" && text.contains("Your administrator"), "{to}: {text}");
    let rows = decided(&store, Action::ResetFactors).await;
    let effects: Vec<_> = rows.iter().map(|row| row.effect).collect();
    assert_eq!(effects, [None, Some(AuditEvent::new(EventKind::FactorsReset, ann.id))]);
    assert!(firm.run(&["verify"]).contains(" rows: OK"));
    store.close().await;
}

#[tokio::test]
async fn user_list_shows_names() {
    let firm = Firm::new();
    let store = open(&firm).await;
    let ann = sign_in(&store, "2", "ann@example.com", Role::Consultant).await;
    assert_eq!(firm.json(&["user", "list", "--json"])[0]["name"], json!(null));
    let profile = Profile { name: Some("Ann Lee".parse().unwrap()), time_zone: None };
    store.people.set_profile(ann.id, &profile).await.unwrap();
    assert_eq!(firm.json(&["user", "list", "--json"])[0]["name"], json!("Ann Lee"));
    assert!(firm.run(&["user", "list"]).contains("ann@example.com  consultant  Ann Lee"));
    store.close().await;
}

#[test]
fn invalid_email_or_role_is_rejected_with_the_expected_format() {
    let firm = Firm::new();
    assert!(
        firm.fail(&["user", "role", "ann@example.com", "boss"])
            .contains("a role is `consultant` or `partner`")
    );
    assert!(firm.fail(&["user", "remove", "ann"]).contains("exactly one `@`"));
    assert!(firm.fail(&["user", "list"]).contains("no Chancery database"));
}
