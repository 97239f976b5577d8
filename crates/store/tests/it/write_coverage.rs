//! Every write of the store is either a business write or a system write, and is classified here.
//!
//! A business write takes a permit, or is an event of signing in or out. It goes through an audited step, so its audit
//! row is in its own transaction. A system write has its reason in the list below. Everything else only reads. The
//! lists are checked against the sources, so that a new method must be added to one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Audited without a permit: either nothing has been permitted yet, or people act on their own sessions.
const EVENTS: &[&str] = &[
    "sign_in",
    "sign_in_from_directory",
    "start_session",
    "end_session",
    "end_all_sessions",
    "end_sessions_of_identity",
    "end_sessions_by_provider",
    "renew_session",
    "record_reauthentication_required",
    "record_export_quota_exceeded",
    "verify_code",
];

/// Continues under a recorded decision: `read_audit_page` and `read_changes` under that of `read_audit`, `find_matches` under that of
/// `list_clients`, and `read_work` under that of `find_work`. The last two take a permit for each record too. `import_clients` is
/// an `import_parts` of one part.
const CONTINUATIONS: &[&str] =
    &["read_audit_page", "read_changes", "find_matches", "read_work", "import_clients"];

const SYSTEM_WRITES: &[(&str, &[&str])] = &[
    ("the ledger, which has a chain of its own; a reply waits for it", &["settle", "probe_write"]),
    (
        "a caller's own request, which the ledger ends",
        &["reserve_spending", "release_spending", "claim_key", "release_key"],
    ),
    ("counts of requests that were rejected, and when keys were used", &["record_activity"]),
    (
        "the process itself: that it lives, and what a dead one left behind",
        &["renew_lease", "reap_orphaned_reservations", "create_month_partitions"],
    ),
    ("a secret that the nodes draw for themselves", &["shared_secret", "add_signing_key"]),
    (
        "which key encrypts the secrets; the secrets stay the same",
        &["check_encryption_keys", "rotate_encryption_key"],
    ),
    ("counts of attempts, to slow guessing down", &["count_throttle", "refund_throttle", "reset_throttle"]),
    (
        "a sign-in under way; how it ends is audited",
        &[
            "begin_sign_in",
            "consume_sign_in",
            "begin_pending_email_code",
            "count_code_email",
            "mark_code_sent",
            "mark_code_unsent",
        ],
    ),
    (
        "messages and alerts that the server itself sends",
        &[
            "enqueue_messages",
            "claim_messages",
            "finish_message",
            "postpone_webhook_messages",
            "send_alert",
            "disable_webhook",
        ],
    ),
    ("which process runs a periodic task", &["claim_periodic_task"]),
    (
        "what the checkpointer derives from rows that are there already",
        &["append_to_log", "record_checkpoint"],
    ),
    ("that a session was used", &["active_session", "active_bound_session", "provider_session"]),
    ("what people say about themselves, which decides nothing", &["set_profile"]),
    (
        "text that a person typed before their session ended; giving it back takes a permit",
        &["save_text_of_ended_session"],
    ),
    (
        "the identity provider's own accounts and grants, about which no policy of the portal decides",
        &[
            "create_provider_account",
            "create_proven_account",
            "set_proven_password",
            "set_password",
            "start_provider_session",
            "continue_provider_session",
            "end_provider_session",
            "end_provider_session_by_sid",
            "end_provider_sessions",
            "end_other_provider_sessions",
            "change_password",
            "reauthenticate_provider_session",
            "begin_proof",
            "replace_proof_code",
            "consume_proof",
            "create_consent_request",
            "consume_consent_request",
            "save_consent",
            "revoke_consents",
            "issue_code",
            "redeem_code",
            "claim_backchannel_logouts",
            "finish_backchannel_logout",
            "retry_backchannel_logout",
            "remember_device",
        ],
    ),
    (
        "second factors of the identity provider's accounts, which their owners change",
        &[
            "add_passkey",
            "rename_passkey",
            "record_passkey_use",
            "remove_passkey",
            "add_totp",
            "accept_totp_step",
            "remove_totp",
            "replace_recovery_codes",
            "consume_recovery_code",
            "begin_ceremony",
            "consume_ceremony",
            "begin_second_factor",
            "consume_second_factor",
        ],
    ),
    (
        "deletes what has expired",
        &[
            "delete_expired_ceremonies",
            "delete_expired_second_factors",
            "delete_expired_keys",
            "delete_expired_sessions",
            "delete_expired_logout_tokens",
            "delete_expired_sign_ins",
            "delete_expired_provider_sessions",
            "delete_expired_proofs",
            "delete_expired_devices",
            "delete_expired_grants",
            "delete_expired_invitations",
            "delete_expired_signing_keys",
            "delete_expired_throttles",
            "delete_expired_unsaved_texts",
            "delete_finished_messages",
            "delete_old_alerts",
        ],
    ),
];

const READS: &[&str] = &[
    "account_by_name",
    "account_factors",
    "audit_chain_head",
    "audit_rows",
    "billed_months",
    "billing_contacts",
    "capped_spending",
    "chain_head",
    "checkpoints_after",
    "chained_rows",
    "consented_clients",
    "consents",
    "current_encryption_key",
    "daily_usage",
    "due_webhooks",
    "encryption_key_usage",
    "expiring_keys",
    "find_ceremony",
    "find_proof",
    "finished_keys",
    "grant_for_access_token",
    "has_clients",
    "idempotency_record",
    "is_known_device",
    "is_known_device_of_anyone",
    "is_letter_undelivered",
    "issued_document",
    "issued_invoices",
    "cap_statuses",
    "key_by_id",
    "key_by_prefix",
    "last_invoice_numbers",
    "ledger_rows",
    "letter_template",
    "list_accounts",
    "list_invitations",
    "list_keys",
    "list_letter_templates",
    "list_names",
    "list_people",
    "list_removed_people",
    "list_sessions",
    "list_webhooks",
    "log_leaves",
    "log_nodes",
    "log_segments",
    "log_size",
    "logged_usage",
    "month_usage",
    "next_attempt_at",
    "next_audit_writer",
    "next_backchannel_logout_at",
    "next_writer",
    "owner_of",
    "passkey",
    "pending_email_code",
    "pending_second_factor",
    "people_by_email",
    "provider_account",
    "provider_account_by_email",
    "sent_alerts",
    "signing_keys",
    "stored_id_token",
    "throttle_count",
    "totp_secret",
    "unlogged_rows",
    "usage",
    "wait_for_ended_session",
    "wait_for_wake",
    "webhook_by_id",
    "webhook_errors",
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

/// The public methods of the aggregates with their bodies, by name.
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
        "logs",
        "outbox",
        "people",
        "provider",
        "secrets",
        "templates",
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
        method.takes_permit = ["Permit<", "ImportPart>", "Denial"].iter().any(|it| method.body.contains(it));
    }
    bodies
}

#[test]
fn every_write_is_audited_or_listed_as_system_write() {
    let methods = methods();
    assert!(methods.len() > 100, "the sources were read: {:?}", methods.keys());
    let system: Vec<&str> = SYSTEM_WRITES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let mut listed = BTreeSet::new();
    for name in EVENTS.iter().chain(CONTINUATIONS).chain(&system).chain(READS) {
        assert!(listed.insert(*name), "{name} is listed twice");
        assert!(methods.contains_key(*name), "{name} is listed, and there is no such method");
    }
    for (name, Method { takes_permit, body }) in &methods {
        // Method chains may span several lines.
        let body: String = body.split_whitespace().collect();
        let is_listed = |names: &[&str]| names.contains(&name.as_str());
        let is_audited = body.contains("self.audited");
        let writes = [
            ".execute(",
            ".run(",
            ".run_long(",
            ".write(",
            ".write_soon(",
            ".write_long(",
            ".write_returning(",
        ];
        if *takes_permit || is_listed(EVENTS) {
            assert!(!is_listed(&system) && !is_listed(READS), "{name} takes a permit");
            assert!(is_audited || is_listed(CONTINUATIONS), "{name} writes no row of the audit: {body}");
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
