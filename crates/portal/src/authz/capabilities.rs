//! What pages offer somebody: sections of the bar, buttons, colleagues to choose from. Asked of the policy once per request, and
//! good for showing or hiding alone: it opens no record and leaves no audit row. Whatever is done is decided by `permits`.

use chancery_domain::{Asker, Client};
use chancery_policy::{
    ArchiveClient, ClientInQuestion, EditClient, ManageInvoices, Policy, ReadAccounts, ReadAudit,
    ReadInvoices, ReadTeam, ReadUsage, ReassignClient, TheFirm,
};

/// What is about no single client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub(crate) read_invoices: bool,
    pub(crate) read_usage: bool,
    pub(crate) read_accounts: bool,
    pub(crate) read_team: bool,
    pub(crate) read_audit: bool,
}

impl Capabilities {
    pub(crate) fn of(policy: &Policy, principal: Asker) -> Self {
        Self {
            read_invoices: policy.would_allow::<ReadInvoices>(principal, TheFirm),
            read_usage: policy.would_allow::<ReadUsage>(principal, TheFirm),
            read_accounts: policy.would_allow::<ReadAccounts>(principal, TheFirm),
            read_team: policy.would_allow::<ReadTeam>(principal, TheFirm),
            read_audit: policy.would_allow::<ReadAudit>(principal, TheFirm),
        }
    }
}

/// What is about this client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientCapabilities {
    pub(crate) edit: bool,
    pub(crate) archive: bool,
    pub(crate) reassign: bool,
}

impl ClientCapabilities {
    pub(crate) fn of(policy: &Policy, principal: Asker, client: &Client) -> Self {
        let about = ClientInQuestion { id: client.id, owner: Some(client.owner.id) };
        Self {
            edit: policy.would_allow::<EditClient>(principal, about),
            archive: policy.would_allow::<ArchiveClient>(principal, about),
            reassign: policy.would_allow::<ReassignClient>(principal, about),
        }
    }
}

/// The buttons of an invoice.
pub(crate) fn may_manage_invoices(policy: &Policy, principal: Asker) -> bool {
    policy.would_allow::<ManageInvoices>(principal, TheFirm)
}
