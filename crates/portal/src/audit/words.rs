//! A row of the audit in plain words. Whoever is allowed to change something may still not have done it, by a conflict or by a
//! bad form, so a change is said to be asked for, unless the row tells what was done to whom.

use chancery_domain::{Action, AuditEvent, Decision, EventKind, Role};
use chancery_store::AuditLine;

/// What somebody did, or was refused: "opened the record", "signed in".
pub(super) fn in_words(line: &AuditLine) -> String {
    match (line.row.event(), line.row.as_decision()) {
        (Some(event), _) => {
            event_in_words(event, line.subject.as_ref().map_or("somebody", |person| person.email.as_str()))
        }
        (None, Some(row)) => decision_in_words(row.asked.action, row.decision).to_owned(),
        (None, None) => String::new(),
    }
}

fn event_in_words(event: AuditEvent, subject: &str) -> String {
    let role = |role: Option<Role>| role.map_or("?", Role::as_str);
    match event.kind {
        EventKind::PersonJoined => format!("signed in for the first time, as a {}", role(event.new_role)),
        EventKind::PersonPromoted => "became a partner, as portal.partners says".to_owned(),
        EventKind::SignedIn => "signed in".to_owned(),
        EventKind::SignedOut => "signed out".to_owned(),
        EventKind::CodeRejected => "typed a wrong sign-in code".to_owned(),
        EventKind::RoleChanged => {
            format!("changed the role of {subject} from {} to {}", role(event.old_role), role(event.new_role))
        }
        EventKind::PersonRemoved => format!("removed {subject}"),
        EventKind::PersonRestored => format!("restored {subject}"),
        EventKind::SessionsEnded => format!("signed {subject} out"),
    }
}

fn decision_in_words(action: Action, decision: Decision) -> &'static str {
    let (allowed, refused) = match action {
        Action::ListClients => ("opened the list of clients", "was refused the list of clients"),
        Action::CreateClient => ("asked to add a client", "was refused to add a client"),
        Action::ReadClient => ("opened the record", "was refused the record"),
        Action::EditClient => ("asked to change the record", "was refused a change of the record"),
        Action::ArchiveClient => {
            ("asked to archive or restore the record", "was refused to archive or restore the record")
        }
        Action::ReassignClient => {
            ("asked to give the record to somebody", "was refused to give the record to somebody")
        }
        Action::ExportClient => ("took the record along in a file", "was refused the record in a file"),
        Action::ReadTeam => ("opened the team", "was refused the team"),
        Action::ManageTeam => ("asked to change the team", "was refused a change of the team"),
        Action::ReadAudit => ("opened the audit", "was refused the audit"),
        Action::ReadUsage => ("opened the usage", "was refused the usage"),
        Action::ReadInvoices => ("opened the invoices", "was refused the invoices"),
        Action::ManageInvoices => ("asked to change an invoice", "was refused a change of an invoice"),
        Action::ReadAccounts => ("opened the billing accounts", "was refused the billing accounts"),
        Action::ManageAccounts => {
            ("asked to change billing accounts or keys", "was refused a change of billing accounts or keys")
        }
    };
    match decision {
        Decision::Allowed => allowed,
        Decision::Refused => refused,
    }
}

/// As a choice among filters.
pub(super) fn event_name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::PersonJoined => "First sign-in",
        EventKind::PersonPromoted => "Became a partner by configuration",
        EventKind::SignedIn => "Sign-in",
        EventKind::SignedOut => "Sign-out",
        EventKind::CodeRejected => "Wrong sign-in code",
        EventKind::RoleChanged => "Role changed",
        EventKind::PersonRemoved => "Person removed",
        EventKind::PersonRestored => "Person restored",
        EventKind::SessionsEnded => "Somebody signed out by a partner",
    }
}

/// As a choice among filters.
pub(super) fn name(action: Action) -> &'static str {
    match action {
        Action::ListClients => "Open the list of clients",
        Action::CreateClient => "Add a client",
        Action::ReadClient => "Open a record",
        Action::EditClient => "Change a record",
        Action::ArchiveClient => "Archive or restore a record",
        Action::ReassignClient => "Give a record to somebody",
        Action::ExportClient => "Take a record along in a file",
        Action::ReadTeam => "Open the team",
        Action::ManageTeam => "Change the team",
        Action::ReadAudit => "Open the audit",
        Action::ReadUsage => "Open the usage",
        Action::ReadInvoices => "Open the invoices",
        Action::ManageInvoices => "Issue, credit or settle an invoice",
        Action::ReadAccounts => "Open the billing accounts",
        Action::ManageAccounts => "Change billing accounts or keys",
    }
}
