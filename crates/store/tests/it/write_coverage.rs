//! Every write of the store is one of two kinds, and which one it is stands here.
//!
//! A business write takes a permit, or is an event of signing in or out, and goes through an audited step: its row of the audit
//! is in its own transaction. A system write has its reason in the list below. Everything else only reads. The lists are held
//! against the sources, so that a new method has to be put into one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Audited without a permit: nobody has been allowed anything yet, or they do it to themselves.
const EVENTS: &[&str] =
    &["arrive", "start_session", "end_session", "end_all_sessions", "end_sessions_of_identity", "try_code"];

/// Goes on with what `read_audit` has recorded.
const CONTINUED: &[&str] = &["read_more_audit"];

const SYSTEM_WRITES: &[(&str, &[&str])] = &[
    ("the ledger, which has a chain of its own; a reply waits for it", &["settle"]),
    (
        "a caller's own request, which the ledger ends",
        &["reserve_spending", "release_spending", "claim_key", "free_key"],
    ),
    ("counts of requests that were rejected", &["note_activity"]),
    (
        "the process itself: that it lives, and what a dead one left behind",
        &["renew_lease", "forget_dead", "make_months_ready"],
    ),
    ("a secret that the nodes draw for themselves", &["shared_secret", "add_signing_key"]),
    ("counts of attempts, to slow guessing down", &["count_throttle", "refund_throttle", "reset_throttle"]),
    (
        "a sign-in under way; how it ends is audited",
        &[
            "begin_sign_in",
            "take_sign_in",
            "begin_half_sign_in",
            "may_send_code",
            "code_was_sent",
            "code_was_not_sent",
        ],
    ),
    ("that a session was used", &["signed_in", "provider_session"]),
    (
        "the identity provider's own accounts and grants, about which no policy of the portal decides",
        &[
            "create_provider_account",
            "create_proven_account",
            "set_proven_password",
            "set_password",
            "start_provider_session",
            "end_provider_session",
            "end_provider_sessions_of",
            "begin_proof",
            "replace_proof_code",
            "take_proof",
            "ask_for_consent",
            "take_consent_question",
            "remember_consent",
            "forget_consents",
            "issue_code",
            "redeem_code",
        ],
    ),
    (
        "deletes what has expired",
        &[
            "forget_expired_keys",
            "forget_ended_sessions",
            "forget_old_sign_ins",
            "forget_ended_provider_sessions",
            "forget_old_proofs",
            "forget_old_grants",
            "forget_old_signing_keys",
            "delete_expired_throttles",
        ],
    ),
];

const READS: &[&str] = &[
    "access",
    "account_named",
    "audit_chain_head",
    "audit_rows",
    "audit_writer_after",
    "billed_months",
    "billing_contacts",
    "chain_head",
    "chained_rows",
    "consents",
    "day_usage",
    "half_sign_in",
    "has_clients",
    "issued_document",
    "issued_invoices",
    "kept_keys",
    "key_holder",
    "key_with_prefix",
    "last_invoice_numbers",
    "ledger_rows",
    "list_accounts",
    "list_keys",
    "list_people",
    "list_removed_people",
    "month_usage",
    "owner_of",
    "people_with_email",
    "proof",
    "provider_account",
    "provider_account_with_email",
    "sessions_of",
    "signing_keys",
    "throttle_count",
    "usage",
    "writer_after",
];

#[derive(Default)]
struct Method {
    takes_permit: bool,
    body: String,
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The methods of the aggregates' public interfaces with their bodies, by name.
fn methods() -> BTreeMap<String, Method> {
    let mut files = Vec::new();
    for aggregate in [
        "accounts",
        "audit",
        "billing",
        "clients",
        "idempotency",
        "leases",
        "ledger",
        "people",
        "provider",
        "secrets",
        "throttles",
    ] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(aggregate), &mut files);
    }
    files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session_revoker.rs"));
    let mut bodies: BTreeMap<String, Method> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let trimmed = line.trim_start();
            let indent = line.len() - trimmed.len();
            let Some(rest) = trimmed.strip_prefix("pub async fn ") else { continue };
            if indent == 0 {
                continue;
            }
            let name = rest.split(['(', '<']).next().unwrap().to_owned();
            let mut method = line.to_owned();
            while !method.trim_end().ends_with('{') {
                method.push('\n');
                method.push_str(lines.next().unwrap());
            }
            if !method.contains("&self") {
                continue;
            }
            let end = format!("{}}}", " ".repeat(indent));
            for line in lines.by_ref().take_while(|line| *line != end) {
                method.push('\n');
                method.push_str(line);
            }
            bodies.entry(name).or_default().body.push_str(&method);
        }
    }
    for method in bodies.values_mut() {
        method.takes_permit = method.body.contains("Permit<") || method.body.contains("Denial");
    }
    bodies
}

#[test]
fn every_write_takes_a_permit_and_is_audited_or_is_a_system_write_with_a_reason() {
    let methods = methods();
    assert!(methods.len() > 100, "the sources were read: {:?}", methods.keys());
    let system: Vec<&str> = SYSTEM_WRITES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let mut listed = BTreeSet::new();
    for name in EVENTS.iter().chain(CONTINUED).chain(&system).chain(READS) {
        assert!(listed.insert(*name), "{name} is listed twice");
        assert!(methods.contains_key(*name), "{name} is listed, and there is no such method");
    }
    for (name, Method { takes_permit, body }) in &methods {
        // A chain of calls may be broken into lines.
        let body: String = body.split_whitespace().collect();
        let is_listed = |names: &[&str]| names.contains(&name.as_str());
        let is_audited = body.contains("self.audited");
        let writes = [".execute(", ".run(", ".run_long(", ".write_returning("];
        if *takes_permit || is_listed(EVENTS) {
            assert!(!is_listed(&system) && !is_listed(READS), "{name} takes a permit");
            assert!(is_audited || is_listed(CONTINUED), "{name} writes no row of the audit: {body}");
            let past_the_audit = writes.iter().any(|write| body.contains(&format!("self.db{write}")));
            assert!(!past_the_audit, "{name} writes past its audited step: {body}");
        } else if is_listed(READS) {
            assert!(!writes.iter().any(|write| body.contains(write)), "{name} writes: {body}");
        } else {
            assert!(
                is_listed(&system),
                "{name} takes no permit: say in SYSTEM_WRITES why, or in READS that it reads"
            );
        }
    }
}
