//! The audit's rows: decisions about who may do what, with what they changed about somebody, and events of signing in and
//! out. The rows of each process are chained like those of the ledger.

use crate::chain::{ChainHasher, Chained};
use crate::{ClientId, PersonId, Randomness, RequestId, Role, UnixMillis};
use std::fmt;
use std::net::IpAddr;
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

/// What happened to somebody's access, by the names that the audit has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// Somebody signed in for the first time.
    PersonJoined,
    /// `portal.partners` made a partner of somebody who signed in.
    PersonPromoted,
    SignedIn,
    /// One's own sessions ended, one or several.
    SignedOut,
    /// A wrong code was typed as the second factor.
    CodeRejected,
    RoleChanged,
    PersonRemoved,
    PersonRestored,
    /// Somebody else ended the person's sessions.
    SessionsEnded,
}

impl EventKind {
    pub const ALL: &[Self] = &[
        Self::PersonJoined,
        Self::PersonPromoted,
        Self::SignedIn,
        Self::SignedOut,
        Self::CodeRejected,
        Self::RoleChanged,
        Self::PersonRemoved,
        Self::PersonRestored,
        Self::SessionsEnded,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::PersonJoined => "personJoined",
            Self::PersonPromoted => "personPromoted",
            Self::SignedIn => "signedIn",
            Self::SignedOut => "signedOut",
            Self::CodeRejected => "codeRejected",
            Self::RoleChanged => "roleChanged",
            Self::PersonRemoved => "personRemoved",
            Self::PersonRestored => "personRestored",
            Self::SessionsEnded => "sessionsEnded",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such event")]
pub struct EventKindError;

impl FromStr for EventKind {
    type Err = EventKindError;

    fn from_str(text: &str) -> Result<Self, EventKindError> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or(EventKindError)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened, to whom. Ids and names of roles only: nothing that somebody typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    pub kind: EventKind,
    /// None: somebody who is not known yet.
    pub subject: Option<PersonId>,
    pub old_role: Option<Role>,
    pub new_role: Option<Role>,
}

impl AuditEvent {
    pub fn new(kind: EventKind, subject: PersonId) -> Self {
        Self { kind, subject: Some(subject), old_role: None, new_role: None }
    }
}

/// The request that an event came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOrigin {
    /// None: the command line, or a connection that has none.
    pub ip: Option<IpAddr>,
    pub at: UnixMillis,
    pub request_id: RequestId,
}

impl EventOrigin {
    /// For what the server or a command does by itself.
    pub fn local(at: UnixMillis, randomness: &dyn Randomness) -> Self {
        Self { ip: None, at, request_id: RequestId::new(at, randomness) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedDecision {
    pub asked: Asked,
    pub decision: Decision,
    /// What it changed about somebody's access.
    pub effect: Option<AuditEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedEvent {
    /// Whoever did it, in the role that they had. None: somebody who is not known yet.
    pub by: Option<(PersonId, Role)>,
    pub event: AuditEvent,
    pub origin: EventOrigin,
}

/// A row of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditRow {
    Decision(AuditedDecision),
    Event(AuditedEvent),
}

impl AuditRow {
    pub fn decision(asked: Asked, decision: Decision) -> Self {
        Self::Decision(AuditedDecision { asked, decision, effect: None })
    }

    pub fn as_decision(&self) -> Option<&AuditedDecision> {
        match self {
            Self::Decision(decision) => Some(decision),
            Self::Event(_) => None,
        }
    }

    pub fn at(&self) -> UnixMillis {
        match self {
            Self::Decision(row) => row.asked.at,
            Self::Event(row) => row.origin.at,
        }
    }

    pub fn request_id(&self) -> &RequestId {
        match self {
            Self::Decision(row) => &row.asked.request_id,
            Self::Event(row) => &row.origin.request_id,
        }
    }

    /// Who did it.
    pub fn person(&self) -> Option<PersonId> {
        match self {
            Self::Decision(row) => row.asked.by.person(),
            Self::Event(row) => row.by.map(|(person, _)| person),
        }
    }

    /// `consultant`, `partner`, `operator`, or `visitor` for somebody who is not known yet.
    pub fn principal(&self) -> &'static str {
        match self {
            Self::Decision(row) => row.asked.by.as_what(),
            Self::Event(row) => row.by.map_or(Self::VISITOR, |(_, role)| role.as_str()),
        }
    }

    pub const VISITOR: &str = "visitor";

    pub fn client(&self) -> Option<ClientId> {
        self.as_decision()?.asked.client
    }

    /// Where an event came from.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Decision(_) => None,
            Self::Event(row) => row.origin.ip,
        }
    }

    /// What happened to somebody's access.
    pub fn event(&self) -> Option<AuditEvent> {
        match self {
            Self::Decision(row) => row.effect,
            Self::Event(row) => Some(row.event),
        }
    }

    /// `readClient`, or `signedIn` where nothing was to be decided.
    pub fn action_name(&self) -> &'static str {
        match self {
            Self::Decision(row) => row.asked.action.as_str(),
            Self::Event(row) => row.event.kind.as_str(),
        }
    }
}

impl Chained for AuditRow {
    const LAYOUT: &'static [u8] = b"chancery audit row 1";

    /// A decision without an effect is fed as it was before there were events. No principal is called `event`.
    fn feed(&self, hasher: &mut ChainHasher) {
        match self {
            Self::Decision(AuditedDecision { asked, decision, effect }) => {
                let Asked { by, action, client, at, request_id } = asked;
                hasher.text(by.as_what());
                // A person's number is never 0.
                hasher.bytes(&by.person().map_or(0, |person| person.0).to_be_bytes());
                hasher.text(action.as_str());
                hasher.bytes(&[u8::from(client.is_some())]);
                hasher.bytes(&client.map_or(0, |client| client.0).to_be_bytes());
                hasher.bytes(&at.0.to_be_bytes());
                hasher.text(request_id.as_str());
                hasher.text(decision.as_str());
                if let Some(effect) = effect {
                    feed_event(hasher, effect);
                }
            }
            Self::Event(AuditedEvent { by, event, origin: EventOrigin { ip, at, request_id } }) => {
                hasher.text("event");
                hasher.text(self.principal());
                hasher.bytes(&by.map_or(0, |(person, _)| person.0).to_be_bytes());
                hasher.bytes(&at.0.to_be_bytes());
                hasher.text(request_id.as_str());
                hasher.text(&ip.map(|ip| ip.to_string()).unwrap_or_default());
                feed_event(hasher, event);
            }
        }
    }
}

fn feed_event(hasher: &mut ChainHasher, event: &AuditEvent) {
    let AuditEvent { kind, subject, old_role, new_role } = event;
    hasher.text(kind.as_str());
    hasher.bytes(&subject.map_or(0, |person| person.0).to_be_bytes());
    hasher.text(old_role.map_or("", Role::as_str));
    hasher.text(new_role.map_or("", Role::as_str));
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
        AuditRow::decision(asked, Decision::Refused)
    }

    fn decided() -> AuditedDecision {
        row().as_decision().unwrap().clone()
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
        let AuditedDecision { asked, decision, .. } = decided();
        let with = |asked: Asked| AuditRow::decision(asked, decision);
        let person = |id, role| Asker::Person { id: PersonId(id), role };
        let rows = [
            row(),
            AuditRow::decision(asked.clone(), Decision::Allowed),
            with(Asked { by: Asker::Operator, ..asked.clone() }),
            with(Asked { by: person(4, Role::Consultant), ..asked.clone() }),
            with(Asked { by: person(3, Role::Partner), ..asked.clone() }),
            with(Asked { action: Action::EditClient, ..asked.clone() }),
            with(Asked { client: None, ..asked.clone() }),
            with(Asked { client: Some(ClientId(0)), ..asked.clone() }),
            with(Asked { at: UnixMillis(asked.at.0 + 1), ..asked.clone() }),
            with(Asked { request_id: RequestId::from_stored("req_2".to_owned()), ..asked }),
        ];
        assert_all_differ(&rows);
    }

    #[test]
    fn every_part_of_an_event_is_in_its_hash() {
        let kind = EventKind::RoleChanged;
        let (consultant, partner) = (Some(Role::Consultant), Some(Role::Partner));
        let event =
            AuditEvent { old_role: consultant, new_role: partner, ..AuditEvent::new(kind, PersonId(4)) };
        let effect = |event| AuditRow::Decision(AuditedDecision { effect: Some(event), ..decided() });
        let origin = EventOrigin {
            ip: Some("192.0.2.7".parse().unwrap()),
            at: UnixMillis(1_794_744_000_000),
            request_id: RequestId::from_stored("req_1".to_owned()),
        };
        let happened =
            AuditedEvent { by: Some((PersonId(4), Role::Consultant)), event, origin: origin.clone() };
        let with = |origin| AuditRow::Event(AuditedEvent { origin, ..happened.clone() });
        assert_all_differ(&[
            row(),
            effect(event),
            effect(AuditEvent { kind: EventKind::PersonPromoted, ..event }),
            effect(AuditEvent { subject: Some(PersonId(5)), ..event }),
            effect(AuditEvent { subject: None, ..event }),
            effect(AuditEvent { old_role: None, ..event }),
            effect(AuditEvent { old_role: None, new_role: consultant, ..event }),
            effect(AuditEvent { new_role: None, ..event }),
            AuditRow::Event(happened.clone()),
            AuditRow::Event(AuditedEvent { by: None, ..happened.clone() }),
            AuditRow::Event(AuditedEvent { by: Some((PersonId(4), Role::Partner)), ..happened.clone() }),
            AuditRow::Event(AuditedEvent { by: Some((PersonId(5), Role::Consultant)), ..happened.clone() }),
            AuditRow::Event(AuditedEvent {
                event: AuditEvent { kind: EventKind::SignedIn, ..event },
                ..happened.clone()
            }),
            with(EventOrigin { ip: None, ..origin.clone() }),
            with(EventOrigin { ip: Some("192.0.2.8".parse().unwrap()), ..origin.clone() }),
            with(EventOrigin { at: UnixMillis(origin.at.0 + 1), ..origin.clone() }),
            with(EventOrigin { request_id: RequestId::from_stored("req_2".to_owned()), ..origin }),
        ]);
    }

    #[test]
    fn no_event_has_the_name_of_an_action() {
        for kind in EventKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(*kind));
            assert!(kind.as_str().parse::<Action>().is_err(), "{kind}");
        }
    }

    fn assert_all_differ(rows: &[AuditRow]) {
        let hashes: Vec<ChainHash> =
            rows.iter().map(|row| ChainHead::default().hash_of_next(WriterId(7), row)).collect();
        for (place, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..place].contains(hash), "hash {place} is that of another row");
        }
    }
}
