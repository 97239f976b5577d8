//! What a page offers the user: navigation sections, buttons, lists of colleagues. Evaluated once per request. It only shows or hides
//! controls: it opens no record and writes no audit row. `permits` decides every actual access.

use chancery_domain::{Client, Principal};
use chancery_policy::{
    ArchiveClient, ClientResource, EditClient, FirmResource, ManageInvoices, ManageTemplates, Policy,
    ReadAccounts, ReadAudit, ReadInvoices, ReadTeam, ReadUsage, ReassignClient,
};

/// Capabilities that do not concern a single client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub(crate) read_invoices: bool,
    pub(crate) read_usage: bool,
    pub(crate) read_accounts: bool,
    pub(crate) read_team: bool,
    pub(crate) read_audit: bool,
}

impl Capabilities {
    pub(crate) fn of(policy: &Policy, principal: Principal) -> Self {
        Self {
            read_invoices: policy.is_allowed::<ReadInvoices>(principal, FirmResource),
            read_usage: policy.is_allowed::<ReadUsage>(principal, FirmResource),
            read_accounts: policy.is_allowed::<ReadAccounts>(principal, FirmResource),
            read_team: policy.is_allowed::<ReadTeam>(principal, FirmResource),
            read_audit: policy.is_allowed::<ReadAudit>(principal, FirmResource),
        }
    }
}

/// Capabilities for one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientCapabilities {
    pub(crate) edit: bool,
    pub(crate) archive: bool,
    pub(crate) reassign: bool,
}

impl ClientCapabilities {
    pub(crate) fn of(policy: &Policy, principal: Principal, client: &Client) -> Self {
        let resource = ClientResource { id: client.id, owner: Some(client.owner.id) };
        Self {
            edit: policy.is_allowed::<EditClient>(principal, resource),
            archive: policy.is_allowed::<ArchiveClient>(principal, resource),
            reassign: policy.is_allowed::<ReassignClient>(principal, resource),
        }
    }
}

/// Whether to show an invoice's buttons.
pub(crate) fn can_manage_invoices(policy: &Policy, principal: Principal) -> bool {
    policy.is_allowed::<ManageInvoices>(principal, FirmResource)
}

/// Whether to link to the page of letter templates.
pub(crate) fn can_manage_templates(policy: &Policy, principal: Principal) -> bool {
    policy.is_allowed::<ManageTemplates>(principal, FirmResource)
}
