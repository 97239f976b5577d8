//! What may be asked, each a type of its own: the store's methods say in their types which permit they want, and a permit to
//! read a client is none to change it.

use chancery_domain::{Action, ClientId, PersonId};

/// One kind of question. There are no others than those below.
pub trait Act: sealed::Sealed + Send + Sync + 'static {
    const ACTION: Action;

    /// What it is asked about.
    type About: About;
}

/// What a question is about, as the policy sees it.
pub trait About: sealed::Sealed {
    fn resource(self) -> Resource;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Client {
        /// None for one that is still to be made.
        id: Option<ClientId>,
        /// None for a number that is no client's.
        owner: Option<PersonId>,
    },
    Firm,
}

/// A number that somebody asks for, and whose client has it. Where there is no such client, the owner is nobody, and everything
/// goes on as with a client that is somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInQuestion {
    pub id: ClientId,
    pub owner: Option<PersonId>,
}

/// The owner that a client is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewClientFor(pub PersonId);

/// What is asked about no single client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TheFirm;

impl About for ClientInQuestion {
    fn resource(self) -> Resource {
        Resource::Client { id: Some(self.id), owner: self.owner }
    }
}

impl About for NewClientFor {
    fn resource(self) -> Resource {
        Resource::Client { id: None, owner: Some(self.0) }
    }
}

impl About for TheFirm {
    fn resource(self) -> Resource {
        Resource::Firm
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::ClientInQuestion {}
    impl Sealed for super::NewClientFor {}
    impl Sealed for super::TheFirm {}
}

macro_rules! acts {
    ($($act:ident about $about:ty,)*) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $act;

            impl sealed::Sealed for $act {}

            impl Act for $act {
                const ACTION: Action = Action::$act;
                type About = $about;
            }
        )*
    };
}

acts! {
    ListClients about TheFirm,
    CreateClient about NewClientFor,
    ReadClient about ClientInQuestion,
    EditClient about ClientInQuestion,
    ArchiveClient about ClientInQuestion,
    ReassignClient about ClientInQuestion,
    ExportClient about ClientInQuestion,
    ReadTeam about TheFirm,
    ManageTeam about TheFirm,
    ReadAudit about TheFirm,
    ReadUsage about TheFirm,
    ReadInvoices about TheFirm,
    ManageInvoices about TheFirm,
    ReadAccounts about TheFirm,
    ManageAccounts about TheFirm,
}
