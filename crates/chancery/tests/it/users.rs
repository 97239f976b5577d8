//! `chancery user`, beside a store that others have open.

use crate::server::Firm;
use chancery_domain::{
    Action, Asker, AuditEvent, EventKind, EventOrigin, Identity, OsRandomness, Person, Role, SecretToken,
    SessionTimes, TokenHash, UnixMillis,
};
use chancery_store::{Arrival, NewProviderAccount, NewProviderSession, NewSession, PasswordHash, Store};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const NOON: UnixMillis = UnixMillis(1_794_571_200_000);

async fn open(firm: &Firm) -> Arc<Store> {
    firm.run(&["account", "create", "Hale & Ward"]);
    Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap())
}

async fn arrive(store: &Store, subject: &str, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: "https://id.example.com".to_owned(), subject: subject.to_owned() };
    store
        .people
        .arrive(Arrival {
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
    let (place, browser) = ("192.0.2.1".to_owned(), "Firefox".to_owned());
    let new = NewSession {
        token,
        person: person.id,
        origin: EventOrigin::local(NOON, &OsRandomness),
        place,
        browser,
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    token
}

async fn is_signed_in(store: &Store, token: TokenHash) -> bool {
    let times = SessionTimes { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    store.sessions.signed_in(token, "192.0.2.1", times, NOON).await.unwrap().is_some()
}

/// An account at the built-in provider, as the person's identity, and a browser that it knows.
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
    let times = SessionTimes { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    store.provider_sessions.provider_session(token, times, NOON).await.unwrap().is_some()
}

#[tokio::test]
async fn people_are_listed_changed_signed_out_and_removed_while_others_have_the_store_open() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&store, "1", "ruth@example.com", Role::Partner).await;
    let ann = arrive(&store, "2", "ann@example.com", Role::Consultant).await;
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
    assert!(firm.run(&["user", "sign-out", "ann@example.com"]).contains("was not signed in"));

    assert!(firm.run(&["user", "role", "ann@example.com", "partner"]).contains("is a partner"));
    assert!(firm.run(&["user", "role", "ann@example.com", "consultant"]).contains("is a consultant"));
    let third = start_session(&store, &ann).await;
    let at_provider = start_at_provider(&store, &ann).await;
    assert!(firm.run(&["user", "remove", "ann@example.com"]).contains("is removed"));
    assert!(!is_signed_in(&store, third).await && !is_known_at_provider(&store, at_provider).await);
    assert!(firm.fail(&["user", "role", "ann@example.com", "partner"]).contains("nobody with the address"));
    store.close().await;
}

#[tokio::test]
async fn what_the_command_line_changes_about_somebody_is_in_the_audit_as_the_operators() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&store, "1", "ruth@example.com", Role::Partner).await;
    let ann = arrive(&store, "2", "ann@example.com", Role::Consultant).await;
    firm.run(&["user", "role", "ann@example.com", "partner"]);
    for command in ["sign-out", "remove", "restore"] {
        firm.run(&["user", command, "ann@example.com"]);
    }
    // Each command is a process, and so a chain of its own.
    let (mut changes, mut writer) = (Vec::new(), None);
    while let Some(next) = store.audit_chains.audit_writer_after(writer).await.unwrap() {
        let rows = store.audit_chains.audit_rows(next, 0, 100).await.unwrap();
        let decided = rows.iter().filter_map(|chained| chained.row.as_decision());
        changes.extend(decided.filter(|row| row.asked.action == Action::ManageTeam).cloned());
        writer = Some(next);
    }
    assert!(changes.iter().all(|row| row.asked.by == Asker::Operator), "{changes:?}");
    changes.sort_by_key(|row| row.asked.at);
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
    assert!(firm.run(&["verify"]).contains(" rows: all agree"));
    store.close().await;
}

#[tokio::test]
async fn somebody_who_was_removed_is_listed_as_such_and_can_be_restored() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&store, "1", "ruth@example.com", Role::Partner).await;
    let ann = arrive(&store, "2", "ann@example.com", Role::Consultant).await;
    let not_removed = firm.fail(&["user", "restore", "ann@example.com"]);
    assert!(not_removed.contains("nobody with the address ann@example.com was removed"), "{not_removed}");
    let session = start_session(&store, &ann).await;
    firm.run(&["user", "remove", "ann@example.com"]);
    let list = firm.json(&["user", "list", "--json"]);
    assert_eq!((&list[0]["email"], &list[0]["removed_at"]), (&json!("ruth@example.com"), &json!(null)));
    assert_eq!(list[1]["email"], "ann@example.com");
    assert!(list[1]["removed_at"].as_str().unwrap().ends_with('Z'), "{list}");
    assert!(firm.run(&["user", "list"]).contains("ann@example.com   removed"));

    let restored = firm.run(&["user", "restore", "ANN@example.com"]);
    assert!(restored.contains("may sign in again, as a consultant"), "{restored}");
    assert!(!is_signed_in(&store, session).await, "what has ended stays so");
    arrive(&store, "2", "ann@example.com", Role::Consultant).await;
    assert_eq!(firm.json(&["user", "list", "--json"])[0]["removed_at"], json!(null));
    store.close().await;
}

#[tokio::test]
async fn somebody_whom_the_settings_make_a_partner_stays_one_until_they_do_not() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&store, "1", "ruth@example.com", Role::Partner).await;
    arrive(&store, "2", "ann@example.com", Role::Partner).await;
    let config = firm.data().join("partners.toml");
    let portal = "[portal]\ncompany_domain = \"example.com\"\npartners = [\"ruth@example.com\"]\n";
    std::fs::write(&config, portal).unwrap();
    let config = config.to_str().unwrap();
    let refused = firm.fail(&["--config", config, "user", "role", "ruth@example.com", "consultant"]);
    assert!(refused.contains("listed in portal.partners; take the address out there first"), "{refused}");
    assert_eq!(store.people.list_people().await.unwrap()[1].role, Role::Partner);
    firm.run(&["--config", config, "user", "role", "ann@example.com", "consultant"]);
    firm.run(&["user", "role", "ann@example.com", "partner"]);
    firm.run(&["user", "role", "ruth@example.com", "consultant"]);
    store.close().await;
}

#[tokio::test]
async fn the_last_partner_can_be_neither_removed_nor_made_a_consultant() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&store, "1", "ruth@example.com", Role::Partner).await;
    arrive(&store, "2", "ann@example.com", Role::Consultant).await;
    for command in
        [&["user", "remove", "ruth@example.com"][..], &["user", "role", "ruth@example.com", "consultant"]]
    {
        assert!(firm.fail(command).contains("this is the last partner; make another one first"));
    }
    firm.run(&["user", "role", "ann@example.com", "partner"]);
    firm.run(&["user", "remove", "ruth@example.com"]);
    assert!(firm.fail(&["user", "remove", "ann@example.com"]).contains("last partner"));
    store.close().await;
}

#[tokio::test]
async fn of_several_people_with_one_address_none_is_guessed_at() {
    let firm = Firm::new();
    let store = open(&firm).await;
    for subject in ["17", "18"] {
        arrive(&store, subject, "ann@example.com", Role::Consultant).await;
    }
    let error = firm.fail(&["user", "remove", "ann@example.com"]);
    for part in ["2 people have the address", "--subject", "17 at https://id.example.com, 18 at"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        firm.fail(&["user", "remove", "ann@example.com", "--subject", "19"]).contains("there are: 17 at")
    );
    firm.run(&["user", "remove", "ann@example.com", "--subject", "18", "--issuer", "https://id.example.com"]);
    let list = firm.json(&["user", "list", "--json"]);
    assert_eq!((&list[0]["subject"], &list[0]["removed_at"]), (&json!("17"), &json!(null)));
    store.close().await;
}

#[test]
fn a_mistyped_address_or_role_is_refused_with_the_right_form() {
    let firm = Firm::new();
    assert!(
        firm.fail(&["user", "role", "ann@example.com", "boss"])
            .contains("a role is `consultant` or `partner`")
    );
    assert!(firm.fail(&["user", "remove", "ann"]).contains("exactly one `@`"));
    assert!(firm.fail(&["user", "list"]).contains("no Chancery database"));
}
