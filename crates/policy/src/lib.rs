//! Authorization for the portal. The rules are Cedar policies (`policies/portal.cedar`), validated against their schema at
//! startup. A decision that allows is a `Permit`. Nothing else can create one, and the store requires it to read or change a
//! record. A decision that denies is a `Denial`. Each is for one request and consumed by it.

mod actions;
mod entities;
mod permit;
mod policy;

pub use actions::{
    ArchiveClient, AuthzAction, ClientResource, CreateClient, EditClient, ExportClient, FirmResource,
    InvitePerson, ListClients, ManageAccounts, ManageInvoices, ManageTeam, ManageTemplates,
    NewClientResource, ReadAccounts, ReadAudit, ReadClient, ReadInvoices, ReadTeam, ReadUsage,
    ReassignClient, ResetFactors,
};
pub use permit::{ClientScope, Denial, Permit};
pub use policy::{AuthzRequest, Policy, PolicyError};
