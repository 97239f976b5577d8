//! The account and key that the server creates for the portal's drafts.

use crate::server::{Firm, Server};
use serde_json::Value;

const ACCOUNT: &str = "portal-drafting";

/// The portal's keys, oldest first: prefix and state.
fn keys(firm: &Firm) -> Vec<(String, String)> {
    let keys: Vec<Value> = firm.json(&["key", "list", "--json"]).as_array().unwrap().clone();
    let own = keys.into_iter().filter(|key| key["account"] == ACCOUNT);
    own.map(|key| (key["prefix"].as_str().unwrap().to_owned(), key["state"].as_str().unwrap().to_owned()))
        .collect()
}

fn warns_of(server: &Server, text: &str) -> bool {
    server.log().lines().any(|line| line.contains("letter drafting disabled") && line.contains(text))
}

#[test]
fn portal_account_and_key_are_created_once() {
    let firm = Firm::new();
    firm.start().end();
    let first = keys(&firm);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].1, "active");
    firm.start().end();
    assert_eq!(keys(&firm), first);
    let accounts = firm.json(&["account", "list", "--json"]);
    assert_eq!(accounts.as_array().unwrap().len(), 1);
    assert_eq!((&accounts[0]["name"], &accounts[0]["rpm"]), (&ACCOUNT.into(), &120.into()));
}

#[test]
fn revoked_portal_key_is_rotated_and_closed_account_disables_drafting() {
    let firm = Firm::new();
    firm.start().end();
    let first = keys(&firm).remove(0).0;
    firm.run(&["key", "revoke", &first]);
    let mut server = firm.start();
    assert!(!warns_of(&server, ""), "{}", server.log());
    server.end();
    let both = keys(&firm);
    assert_eq!((both.len(), both[0].1.as_str(), both[1].1.as_str()), (2, "revoked", "active"));
    assert_ne!(both[1].0, first);

    firm.run(&["key", "revoke", &both[1].0]);
    firm.run(&["account", "close", ACCOUNT]);
    let mut server = firm.start();
    assert!(warns_of(&server, "is closed"), "{}", server.log());
    server.end();
    assert_eq!(keys(&firm).len(), 2);
}

#[test]
fn expired_portal_key_is_replaced_at_the_next_start() {
    let firm = Firm::new();
    firm.start().end();
    let first = keys(&firm).remove(0).0;
    firm.run(&["key", "limits", &first, "--expires", "2020-01-01"]);
    for _ in 0..2 {
        firm.start().end();
        let both = keys(&firm);
        assert_eq!(both.len(), 2, "the replacement is used again");
        assert_eq!((both[0].0.as_str(), both[1].1.as_str()), (first.as_str(), "active"));
    }
}

#[test]
fn portal_without_an_api_logs_that_drafting_is_disabled() {
    let firm = Firm::new();
    let mut server = firm.start_with(&["--only", "portal,auth"]);
    assert!(warns_of(&server, "portal.drafting.api_url is not set"), "{}", server.log());
    server.end();
    assert_eq!(firm.json(&["account", "list", "--json"]).as_array().unwrap().len(), 0);
}

#[test]
fn unusable_key_file_stops_startup_and_is_named() {
    let firm = Firm::new().with("CHANCERY_PORTAL__DRAFTING__API_KEY_FILE", "no-such-key");
    let text = firm.fail(&["serve"]);
    assert!(text.contains("portal.drafting.api_key_file: cannot use no-such-key"), "{text}");
}
