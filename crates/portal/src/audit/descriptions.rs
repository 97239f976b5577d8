//! Describes an audit row in plain words. A decision says only what was allowed or denied: an allowed change may still fail with a
//! conflict or an invalid form. Events say what was done to whom.

use crate::person_names::PersonNames;
use chancery_domain::{Action, AuditEvent, Decision, EmailAddress, EventKind, Role};
use chancery_store::AuditListRow;

/// `View client`, `Sign-in`: for the page, which shows the result in its own column. Without names, people are shown by
/// their addresses.
pub(super) fn describe(line: &AuditListRow, names: Option<&PersonNames>) -> String {
    let subject = line.subject.as_ref().map(|person| match names {
        Some(names) => names.full_text(person.id, &person.email),
        None => person.email.to_string(),
    });
    match (line.row.event(), line.row.as_decision()) {
        (Some(event), _) => {
            let invited = line.row.invited().map(EmailAddress::as_str);
            let subject = subject.as_deref().or(invited);
            describe_event(event, subject.unwrap_or("a removed person"))
        }
        (None, Some(row)) => name(row.access_request.action).to_owned(),
        (None, None) => String::new(),
    }
}

/// `View client: allowed`, `Sign-in`.
pub(super) fn describe_with_result(line: &AuditListRow) -> String {
    let description = describe(line, None);
    match line.row.as_decision().map(|row| row.decision) {
        Some(Decision::Allowed) => format!("{description}: allowed"),
        Some(Decision::Denied) => format!("{description}: denied"),
        None => description,
    }
}

fn describe_event(event: AuditEvent, subject: &str) -> String {
    let role = |role: Option<Role>| role.map_or("?", Role::as_str);
    match event.kind {
        EventKind::PersonJoined => format!("First sign-in, as a {}", role(event.new_role)),
        EventKind::PersonPromoted => "Promoted to partner by portal.partners".to_owned(),
        EventKind::SignedIn => "Sign-in".to_owned(),
        EventKind::SignedOut => "Sign-out".to_owned(),
        EventKind::CodeRejected => "Incorrect sign-in code".to_owned(),
        EventKind::RoleChanged => {
            format!("Change role of {subject} from {} to {}", role(event.old_role), role(event.new_role))
        }
        EventKind::PersonRemoved => format!("Remove {subject}"),
        EventKind::PersonRestored => format!("Restore {subject}"),
        EventKind::SessionsEnded => format!("End all sessions of {subject}"),
        EventKind::SignedOutByProvider => "Sign-out by the sign-in service".to_owned(),
        EventKind::PersonInvited => format!("Invite {subject} as a {}", role(event.new_role)),
        EventKind::InvitationCanceled => {
            format!("Cancel the invitation of {subject} as a {}", role(event.new_role))
        }
        EventKind::FactorsReset => format!("Reset second factors of {subject}"),
        EventKind::Reauthenticated => "Signed in again to continue".to_owned(),
        EventKind::ReauthenticationRequired => "Rejected: no recent sign-in".to_owned(),
        EventKind::ExportQuotaExceeded => "Rejected: too many exports".to_owned(),
    }
}

/// Name in the filter list.
pub(super) fn event_label(kind: EventKind) -> &'static str {
    match kind {
        EventKind::PersonJoined => "First sign-in",
        EventKind::PersonPromoted => "Promoted to partner by configuration",
        EventKind::SignedIn => "Sign-in",
        EventKind::SignedOut => "Sign-out",
        EventKind::CodeRejected => "Incorrect sign-in code",
        EventKind::RoleChanged => "Role change",
        EventKind::PersonRemoved => "Person removed",
        EventKind::PersonRestored => "Person restored",
        EventKind::SessionsEnded => "Sessions ended by a partner",
        EventKind::SignedOutByProvider => "Sign-out by the sign-in service",
        EventKind::PersonInvited => "Person invited",
        EventKind::InvitationCanceled => "Invitation canceled",
        EventKind::FactorsReset => "Second factors reset",
        EventKind::Reauthenticated => "Signed in again to continue",
        EventKind::ReauthenticationRequired => "Rejected: no recent sign-in",
        EventKind::ExportQuotaExceeded => "Rejected: too many exports",
    }
}

/// Name in the filter list.
pub(super) fn name(action: Action) -> &'static str {
    match action {
        Action::ListClients => "View client list",
        Action::CreateClient => "Create client",
        Action::ReadClient => "View client",
        Action::EditClient => "Edit client",
        Action::ArchiveClient => "Archive or restore client",
        Action::ReassignClient => "Reassign client",
        Action::ExportClient => "Export record",
        Action::ReadTeam => "View team",
        Action::ManageTeam => "Manage team",
        Action::InvitePerson => "Invite people",
        Action::ResetFactors => "Reset second factors",
        Action::ManageTemplates => "Manage letter templates",
        Action::ReadAudit => "View audit log",
        Action::ReadUsage => "View usage",
        Action::ReadInvoices => "View invoices",
        Action::ManageInvoices => "Manage invoices",
        Action::ReadAccounts => "View accounts",
        Action::ManageAccounts => "Manage accounts and keys",
    }
}
