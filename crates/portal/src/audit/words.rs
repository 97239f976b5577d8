//! A decision in plain words. Whoever is allowed to change something may still not have done it, by a conflict or by a bad
//! form, so a change is said to be asked for.

use chancery_domain::{Action, Decision};

/// What somebody did, or was refused: "opened the record".
pub(super) fn in_words(action: Action, decision: Decision) -> &'static str {
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
