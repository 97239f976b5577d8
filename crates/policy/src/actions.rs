//! The actions, each its own type. Store methods state in their types which permit they require, so a permit to read a client
//! cannot be used to change it.

use chancery_domain::{Action, ClientId, PersonId};

/// A typed action. The trait is sealed: only the actions below implement it.
pub trait AuthzAction: sealed::Sealed + Send + Sync + 'static {
    const ACTION: Action;

    /// The resource that the action applies to.
    type Resource: IntoResource;
}

/// Converts to the resource that the policy sees.
pub trait IntoResource: sealed::Sealed {
    fn resource(self) -> Resource;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Client {
        /// `None` for a client that is not created yet.
        id: Option<ClientId>,
        /// `None` if no client has this id.
        owner: Option<PersonId>,
    },
    Firm,
}

/// A requested client id and its owner. An id that does not exist has no owner and is decided like another person's client, so
/// that the reply does not reveal which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientResource {
    pub id: ClientId,
    pub owner: Option<PersonId>,
}

/// The owner of a client to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewClientResource(pub PersonId);

/// The resource of actions that concern no single client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmResource;

impl IntoResource for ClientResource {
    fn resource(self) -> Resource {
        Resource::Client { id: Some(self.id), owner: self.owner }
    }
}

impl IntoResource for NewClientResource {
    fn resource(self) -> Resource {
        Resource::Client { id: None, owner: Some(self.0) }
    }
}

impl IntoResource for FirmResource {
    fn resource(self) -> Resource {
        Resource::Firm
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::ClientResource {}
    impl Sealed for super::NewClientResource {}
    impl Sealed for super::FirmResource {}
}

macro_rules! actions {
    ($($action:ident on $resource:ty,)*) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $action;

            impl sealed::Sealed for $action {}

            impl AuthzAction for $action {
                const ACTION: Action = Action::$action;
                type Resource = $resource;
            }
        )*
    };
}

actions! {
    ListClients on FirmResource,
    CreateClient on NewClientResource,
    ReadClient on ClientResource,
    EditClient on ClientResource,
    ArchiveClient on ClientResource,
    ReassignClient on ClientResource,
    ExportClient on ClientResource,
    ReadTeam on FirmResource,
    ManageTeam on FirmResource,
    InvitePerson on FirmResource,
    ResetFactors on FirmResource,
    ManageTemplates on FirmResource,
    ReadAudit on FirmResource,
    ReadUsage on FirmResource,
    ReadInvoices on FirmResource,
    ManageInvoices on FirmResource,
    ReadAccounts on FirmResource,
    ManageAccounts on FirmResource,
}
