//! `chancery user`, while another process has the store open.

use crate::server::Firm;
use chancery_domain::{
    Action, AuditEvent, EventKind, EventOrigin, Identity, OsRandomness, Person, Principal, Role, SecretToken,
    SessionTimeouts, TokenHash, UnixMillis,
};
use chancery_store::{
    NewProviderAccount, NewProviderSession, NewSession, PasswordHash, Store, VerifiedIdentity,
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
        person: person.id,
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
    let new = NewProviderSession { token, subject, password_version: 1, at: NOON };
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
    // Each command is a process, and so has its own chain.
    let (mut changes, mut writer) = (Vec::new(), None);
    while let Some(next) = store.audit_chains.next_audit_writer(writer).await.unwrap() {
        let rows = store.audit_chains.audit_rows(next, 0, 100).await.unwrap();
        let decided = rows.iter().filter_map(|chained| chained.row.as_decision());
        changes.extend(decided.filter(|row| row.access_request.action == Action::ManageTeam).cloned());
        writer = Some(next);
    }
    assert!(changes.iter().all(|row| row.access_request.by == Principal::Operator), "{changes:?}");
    changes.sort_by_key(|row| row.access_request.at);
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
    firm.run(&["user", "remove", "ann@example.com", "--subject", "18", "--issuer", "https://id.example.com"]);
    let list = firm.json(&["user", "list", "--json"]);
    assert_eq!((&list[0]["subject"], &list[0]["removed_at"]), (&json!("17"), &json!(null)));
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
