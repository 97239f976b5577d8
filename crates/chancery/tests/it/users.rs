//! `chancery user`, beside a store that others have open.

use crate::server::Firm;
use chancery_domain::{
    Identity, OsRandomness, Person, Role, SecretToken, SessionTimes, TokenHash, UnixMillis,
};
use chancery_store::{Arrival, NewSession, Store};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const NOON: UnixMillis = UnixMillis(1_794_571_200_000);

async fn open(firm: &Firm) -> Arc<dyn Store> {
    firm.run(&["account", "create", "Hale & Ward"]);
    chancery_store::open(&firm.database_url().parse().unwrap()).await.unwrap()
}

async fn arrive(store: &dyn Store, subject: &str, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: "https://id.example.com".to_owned(), subject: subject.to_owned() };
    store.arrive(Arrival { identity, email: email.parse().unwrap(), role, at: NOON }).await.unwrap()
}

async fn start_session(store: &dyn Store, person: &Person) -> TokenHash {
    let token = SecretToken::generate(&OsRandomness).hash();
    let (place, browser) = ("192.0.2.1".to_owned(), "Firefox".to_owned());
    let new = NewSession { token, person: person.id, at: NOON, place, browser, replaces: None };
    store.start_session(new).await.unwrap();
    token
}

async fn is_signed_in(store: &dyn Store, token: TokenHash) -> bool {
    let times = SessionTimes { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    store.signed_in(token, "192.0.2.1", times, NOON).await.unwrap().is_some()
}

#[tokio::test]
async fn people_are_listed_changed_signed_out_and_removed_while_others_have_the_store_open() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&*store, "1", "ruth@example.com", Role::Partner).await;
    let ann = arrive(&*store, "2", "ann@example.com", Role::Consultant).await;
    let list = firm.json(&["user", "list", "--json"]);
    assert_eq!(list[0]["email"], "ann@example.com");
    assert_eq!((&list[1]["email"], &list[1]["role"]), (&json!("ruth@example.com"), &json!("partner")));
    assert_eq!((&list[0]["issuer"], &list[0]["subject"]), (&json!("https://id.example.com"), &json!("2")));
    assert!(firm.run(&["user", "list"]).contains("ann@example.com   consultant"));

    let (first, second) = (start_session(&*store, &ann).await, start_session(&*store, &ann).await);
    assert!(firm.run(&["user", "sign-out", "ANN@example.com"]).contains("2 sessions ended"));
    assert!(!is_signed_in(&*store, first).await && !is_signed_in(&*store, second).await);
    assert!(firm.run(&["user", "sign-out", "ann@example.com"]).contains("was not signed in"));

    assert!(firm.run(&["user", "role", "ann@example.com", "partner"]).contains("is a partner"));
    assert!(firm.run(&["user", "role", "ann@example.com", "consultant"]).contains("is a consultant"));
    let third = start_session(&*store, &ann).await;
    assert!(firm.run(&["user", "remove", "ann@example.com"]).contains("is removed"));
    assert!(!is_signed_in(&*store, third).await);
    assert!(firm.fail(&["user", "role", "ann@example.com", "partner"]).contains("nobody with the address"));
    assert_eq!(firm.json(&["user", "list", "--json"]).as_array().unwrap().len(), 1);
    store.close().await;
}

#[tokio::test]
async fn the_last_partner_can_be_neither_removed_nor_made_a_consultant() {
    let firm = Firm::new();
    let store = open(&firm).await;
    arrive(&*store, "1", "ruth@example.com", Role::Partner).await;
    arrive(&*store, "2", "ann@example.com", Role::Consultant).await;
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
        arrive(&*store, subject, "ann@example.com", Role::Consultant).await;
    }
    let error = firm.fail(&["user", "remove", "ann@example.com"]);
    for part in ["2 people have the address", "--subject", "17 at https://id.example.com, 18 at"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        firm.fail(&["user", "remove", "ann@example.com", "--subject", "19"]).contains("there are: 17 at")
    );
    firm.run(&["user", "remove", "ann@example.com", "--subject", "18", "--issuer", "https://id.example.com"]);
    assert_eq!(firm.json(&["user", "list", "--json"])[0]["subject"], "17");
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
