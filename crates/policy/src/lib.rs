//! Who may do what in the portal. The rules are Cedar policies (`policies/portal.cedar`), held against their schema when the
//! program starts. A decision that allows is a `Permit`, which nothing else can make, and which the store wants before it
//! reads or changes a record; one that refuses is a `Denial`. Both are made for one request and used up by it.

mod acts;
mod entities;
mod permit;
mod policy;

pub use acts::{
    Act, ArchiveClient, ClientInQuestion, CreateClient, EditClient, ExportClient, ListClients,
    ManageAccounts, ManageInvoices, ManageTeam, NewClientFor, ReadAccounts, ReadAudit, ReadClient,
    ReadInvoices, ReadTeam, ReadUsage, ReassignClient, TheFirm,
};
pub use permit::{Denial, Permit, Scope};
pub use policy::{Asking, Policy, PolicyError};
