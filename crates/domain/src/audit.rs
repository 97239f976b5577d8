//! What is kept of every decision about who may do what: who asked, for which record, when, and what was decided. The rows
//! of each process are chained like those of the ledger.

use crate::chain::{ChainHasher, Chained};
use crate::{ClientId, PersonId, RequestId, Role, UnixMillis};
use std::fmt;
use std::str::FromStr;

macro_rules! actions {
    ($($(#[$doc:meta])* $action:ident = $name:literal,)*) => {
        /// What somebody may be allowed to do, by the names that the policy has for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Action {
            $($(#[$doc])* $action,)*
        }

        impl Action {
            pub const ALL: &[Self] = &[$(Self::$action,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$action => $name,)*
                }
            }
        }
    };
}

actions! {
    /// See which clients one may read.
    ListClients = "listClients",
    CreateClient = "createClient",
    ReadClient = "readClient",
    /// Change its facts, and add, change and archive its entries.
    EditClient = "editClient",
    /// Put it away, or take it out again.
    ArchiveClient = "archiveClient",
    /// Give it another owner.
    ReassignClient = "reassignClient",
    /// Take it along in a file.
    ExportClient = "exportClient",
    ReadTeam = "readTeam",
    /// Change roles, end sessions, remove people and let them back in.
    ManageTeam = "manageTeam",
    ReadAudit = "readAudit",
    /// See tokens and money, by day, model, account and key.
    ReadUsage = "readUsage",
    ReadInvoices = "readInvoices",
    /// Issue invoices, mark them as paid, credit them.
    ManageInvoices = "manageInvoices",
    ReadAccounts = "readAccounts",
    /// Make and close billing accounts, set their limits, and make, attach and revoke their keys.
    ManageAccounts = "manageAccounts",
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such action")]
pub struct ActionError;

impl FromStr for Action {
    type Err = ActionError;

    fn from_str(text: &str) -> Result<Self, ActionError> {
        Self::ALL.iter().copied().find(|action| action.as_str() == text).ok_or(ActionError)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Somebody who is signed in, in the role that they have at this moment.
    Person { id: PersonId, role: Role },
    /// Whoever has the command line, and with it the database.
    Operator,
}

impl Asker {
    pub fn person(self) -> Option<PersonId> {
        match self {
            Self::Person { id, .. } => Some(id),
            Self::Operator => None,
        }
    }

    /// `consultant`, `partner` or `operator`.
    pub fn as_what(self) -> &'static str {
        match self {
            Self::Person { role, .. } => role.as_str(),
            Self::Operator => "operator",
        }
    }
}

/// One question to the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub by: Asker,
    pub action: Action,
    /// The number that was asked for, whether there is such a client or not. None where it is about no client, or about one
    /// that is still to be made.
    pub client: Option<ClientId>,
    pub at: UnixMillis,
    pub request_id: RequestId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    Allowed,
    Refused,
}

impl Decision {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a decision is `allowed` or `refused`")]
pub struct DecisionError;

impl FromStr for Decision {
    type Err = DecisionError;

    fn from_str(text: &str) -> Result<Self, DecisionError> {
        [Self::Allowed, Self::Refused]
            .into_iter()
            .find(|decision| decision.as_str() == text)
            .ok_or(DecisionError)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    pub asked: Asked,
    pub decision: Decision,
}

impl Chained for AuditRow {
    const LAYOUT: &'static [u8] = b"chancery audit row 1";

    fn feed(&self, hasher: &mut ChainHasher) {
        let Self { asked: Asked { by, action, client, at, request_id }, decision } = self;
        hasher.text(by.as_what());
        // A person's number is never 0.
        hasher.bytes(&by.person().map_or(0, |person| person.0).to_be_bytes());
        hasher.text(action.as_str());
        hasher.bytes(&[u8::from(client.is_some())]);
        hasher.bytes(&client.map_or(0, |client| client.0).to_be_bytes());
        hasher.bytes(&at.0.to_be_bytes());
        hasher.text(request_id.as_str());
        hasher.text(decision.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChainHash, ChainHead, WriterId};

    fn row() -> AuditRow {
        let asked = Asked {
            by: Asker::Person { id: PersonId(3), role: Role::Consultant },
            action: Action::ReadClient,
            client: Some(ClientId(1042)),
            at: UnixMillis(1_794_744_000_000),
            request_id: RequestId::from_stored("req_1".to_owned()),
        };
        AuditRow { asked, decision: Decision::Refused }
    }

    /// Hashes are kept for years: if this one changes, no row written before can be verified any more.
    #[test]
    fn the_hash_of_a_decision_is_what_it_has_always_been() {
        let head = ChainHead::default().followed_by(WriterId(7), &row());
        assert_eq!(head.rows, 1);
        assert_eq!(head.hash.to_string(), "7e6871157297e80867cd9eea0a3135aec5c464b323605497b4c88c471b93522d");
    }

    #[test]
    fn every_part_of_a_decision_is_in_its_hash() {
        let AuditRow { asked, decision } = row();
        let with = |asked: Asked| AuditRow { asked, decision };
        let person = |id, role| Asker::Person { id: PersonId(id), role };
        let rows = [
            row(),
            AuditRow { decision: Decision::Allowed, ..row() },
            with(Asked { by: Asker::Operator, ..asked.clone() }),
            with(Asked { by: person(4, Role::Consultant), ..asked.clone() }),
            with(Asked { by: person(3, Role::Partner), ..asked.clone() }),
            with(Asked { action: Action::EditClient, ..asked.clone() }),
            with(Asked { client: None, ..asked.clone() }),
            with(Asked { client: Some(ClientId(0)), ..asked.clone() }),
            with(Asked { at: UnixMillis(asked.at.0 + 1), ..asked.clone() }),
            with(Asked { request_id: RequestId::from_stored("req_2".to_owned()), ..asked }),
        ];
        let hashes: Vec<ChainHash> =
            rows.iter().map(|row| ChainHead::default().hash_of_next(WriterId(7), row)).collect();
        for (place, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..place].contains(hash), "hash {place} is that of another row");
        }
    }
}
