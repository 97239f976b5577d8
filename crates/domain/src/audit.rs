//! Audit rows: authorization decisions with the access changes they caused, and sign-in and sign-out events. The rows of each
//! process form a hash chain, as in the ledger.

use crate::chain::{ChainHasher, ChainRow};
use crate::{ClientId, EmailAddress, PersonId, Randomness, RequestId, Role, UnixMillis};
use std::net::IpAddr;

closed_enum! {
    /// An action that the policy can allow, by its name in the policy.
    pub enum Action {
        /// List the clients that the principal may read.
        ListClients = "listClients",
        CreateClient = "createClient",
        ReadClient = "readClient",
        /// Change contact details; add, change and archive entries.
        EditClient = "editClient",
        /// Archive or restore the client.
        ArchiveClient = "archiveClient",
        /// Change the owner.
        ReassignClient = "reassignClient",
        /// Export the record to a file.
        ExportClient = "exportClient",
        ReadTeam = "readTeam",
        /// Change roles, end sessions, remove and restore people.
        ManageTeam = "manageTeam",
        /// Invite people by email, send invitations again, and cancel them.
        InvitePerson = "invitePerson",
        /// Delete another person's passkeys, authenticator app and recovery codes at the built-in provider.
        ResetFactors = "resetFactors",
        /// Create, change and delete the firm's letter templates.
        ManageTemplates = "manageTemplates",
        ReadAudit = "readAudit",
        /// See tokens and costs by day, model, account and key.
        ReadUsage = "readUsage",
        ReadInvoices = "readInvoices",
        /// Issue invoices, mark them as paid, credit them.
        ManageInvoices = "manageInvoices",
        ReadAccounts = "readAccounts",
        /// Create and close billing accounts, set their limits, and create, attach and revoke their keys.
        ManageAccounts = "manageAccounts",
    }
    error UnknownAction = "there is no such action";
}

/// Who makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A signed-in person in their current role.
    Person { id: PersonId, role: Role },
    /// Anyone with access to the command line, and thus to the database.
    Operator,
}

impl Principal {
    pub fn person(self) -> Option<PersonId> {
        match self {
            Self::Person { id, .. } => Some(id),
            Self::Operator => None,
        }
    }

    /// `consultant`, `partner` or `operator`.
    pub fn kind_str(self) -> &'static str {
        match self {
            Self::Person { role, .. } => role.as_str(),
            Self::Operator => "operator",
        }
    }
}

/// One authorization request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRequest {
    pub by: Principal,
    pub action: Action,
    /// The requested client id, whether or not it exists. `None` when the action concerns no client, or one not created yet.
    pub client: Option<ClientId>,
    pub at: UnixMillis,
    pub request_id: RequestId,
}

closed_enum! {
    pub enum Decision {
        Allowed = "allowed",
        Denied = "refused",
    }
    error UnknownDecision = "a decision is `allowed` or `refused`";
}

closed_enum! {
    /// What happened to a person's access, by its name in the audit log.
    pub enum EventKind {
        /// A person signed in for the first time.
        PersonJoined = "personJoined",
        /// A person became a partner at sign-in because `portal.partners` lists them.
        PersonPromoted = "personPromoted",
        SignedIn = "signedIn",
        /// A person ended one or more of their own sessions.
        SignedOut = "signedOut",
        /// A wrong second-factor code was entered.
        CodeRejected = "codeRejected",
        RoleChanged = "roleChanged",
        PersonRemoved = "personRemoved",
        PersonRestored = "personRestored",
        /// Another principal ended the person's sessions.
        SessionsEnded = "sessionsEnded",
        /// The identity provider ended the person's sessions (back-channel logout).
        SignedOutByProvider = "signedOutByProvider",
        /// An email invited a person who is not known yet, for the first time or again. `new_role` is the role offered.
        PersonInvited = "personInvited",
        InvitationCanceled = "invitationCanceled",
        /// Another principal deleted the person's second factors.
        FactorsReset = "factorsReset",
        /// The person authenticated again in the same session (step-up).
        Reauthenticated = "reauthenticated",
        /// Something that the policy allowed was rejected, because the person had not authenticated recently. The decision
        /// has the same request ID.
        ReauthenticationRequired = "reauthenticationRequired",
        /// An export that the policy allowed was rejected, because the person had exported too often.
        ExportQuotaExceeded = "exportQuotaExceeded",
    }
    error UnknownEventKind = "there is no such event";
}

/// An event and the person it concerns. It contains only ids and role names, never user input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    pub kind: EventKind,
    /// `None` if the person is not known yet.
    pub subject: Option<PersonId>,
    pub old_role: Option<Role>,
    pub new_role: Option<Role>,
}

impl AuditEvent {
    pub fn new(kind: EventKind, subject: PersonId) -> Self {
        Self { kind, subject: Some(subject), old_role: None, new_role: None }
    }
}

/// The request that caused an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOrigin {
    /// `None` for the command line, or a connection without an IP address.
    pub ip: Option<IpAddr>,
    pub at: UnixMillis,
    pub request_id: RequestId,
}

impl EventOrigin {
    /// For actions of the server itself or of a command.
    pub fn local(at: UnixMillis, randomness: &dyn Randomness) -> Self {
        Self { ip: None, at, request_id: RequestId::new(at, randomness) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedDecision {
    pub access_request: AccessRequest,
    pub decision: Decision,
    /// How the decision changed a person's access.
    pub effect: Option<AuditEvent>,
    /// The address of an invitation, whose person is not known yet. Only with an effect.
    pub invited: Option<EmailAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedEvent {
    /// Who did it, and their role at the time. `None` if the person is not known yet.
    pub by: Option<(PersonId, Role)>,
    pub event: AuditEvent,
    pub origin: EventOrigin,
}

/// A row of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditRow {
    Decision(AuditedDecision),
    Event(AuditedEvent),
}

impl AuditRow {
    pub fn decision(access_request: AccessRequest, decision: Decision) -> Self {
        Self::Decision(AuditedDecision { access_request, decision, effect: None, invited: None })
    }

    pub fn as_decision(&self) -> Option<&AuditedDecision> {
        match self {
            Self::Decision(decision) => Some(decision),
            Self::Event(_) => None,
        }
    }

    pub fn at(&self) -> UnixMillis {
        match self {
            Self::Decision(row) => row.access_request.at,
            Self::Event(row) => row.origin.at,
        }
    }

    pub fn request_id(&self) -> &RequestId {
        match self {
            Self::Decision(row) => &row.access_request.request_id,
            Self::Event(row) => &row.origin.request_id,
        }
    }

    /// Who did it.
    pub fn person(&self) -> Option<PersonId> {
        match self {
            Self::Decision(row) => row.access_request.by.person(),
            Self::Event(row) => row.by.map(|(person, _)| person),
        }
    }

    /// `consultant`, `partner`, `operator`, or `visitor` for a person who is not known yet.
    pub fn principal(&self) -> &'static str {
        match self {
            Self::Decision(row) => row.access_request.by.kind_str(),
            Self::Event(row) => row.by.map_or(Self::VISITOR, |(_, role)| role.as_str()),
        }
    }

    pub const VISITOR: &str = "visitor";

    pub fn client(&self) -> Option<ClientId> {
        self.as_decision()?.access_request.client
    }

    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Decision(_) => None,
            Self::Event(row) => row.origin.ip,
        }
    }

    /// What happened to a person's access.
    pub fn event(&self) -> Option<AuditEvent> {
        match self {
            Self::Decision(row) => row.effect,
            Self::Event(row) => Some(row.event),
        }
    }

    /// The address of an invitation.
    pub fn invited(&self) -> Option<&EmailAddress> {
        self.as_decision()?.invited.as_ref()
    }

    /// The action of a decision, such as `readClient`, or the kind of an event, such as `signedIn`.
    pub fn action_name(&self) -> &'static str {
        match self {
            Self::Decision(row) => row.access_request.action.as_str(),
            Self::Event(row) => row.event.kind.as_str(),
        }
    }
}

impl ChainRow for AuditRow {
    const DOMAIN_TAG: &'static [u8] = b"chancery audit row 1";

    /// A decision without an effect hashes as it did before events existed. No principal is called `event`, so an event never
    /// hashes like a decision.
    fn update_hash(&self, hasher: &mut ChainHasher) {
        match self {
            Self::Decision(AuditedDecision { access_request, decision, effect, invited }) => {
                let AccessRequest { by, action, client, at, request_id } = access_request;
                hasher.text(by.kind_str());
                // Person ids are never 0.
                hasher.bytes(&by.person().map_or(0, |person| person.0).to_be_bytes());
                hasher.text(action.as_str());
                hasher.bytes(&[u8::from(client.is_some())]);
                hasher.bytes(&client.map_or(0, |client| client.0).to_be_bytes());
                hasher.bytes(&at.0.to_be_bytes());
                hasher.text(request_id.as_str());
                hasher.text(decision.as_str());
                if let Some(effect) = effect {
                    update_event_hash(hasher, effect);
                }
                if let Some(invited) = invited {
                    hasher.text(invited.as_str());
                }
            }
            Self::Event(AuditedEvent { by, event, origin: EventOrigin { ip, at, request_id } }) => {
                hasher.text("event");
                hasher.text(self.principal());
                hasher.bytes(&by.map_or(0, |(person, _)| person.0).to_be_bytes());
                hasher.bytes(&at.0.to_be_bytes());
                hasher.text(request_id.as_str());
                hasher.text(&ip.map(|ip| ip.to_string()).unwrap_or_default());
                update_event_hash(hasher, event);
            }
        }
    }
}

fn update_event_hash(hasher: &mut ChainHasher, event: &AuditEvent) {
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
        let access_request = AccessRequest {
            by: Principal::Person { id: PersonId(3), role: Role::Consultant },
            action: Action::ReadClient,
            client: Some(ClientId(1042)),
            at: UnixMillis(1_794_744_000_000),
            request_id: RequestId::from_stored("req_1".to_owned()),
        };
        AuditRow::decision(access_request, Decision::Denied)
    }

    fn decided() -> AuditedDecision {
        row().as_decision().unwrap().clone()
    }

    /// Hashes are stored for years: if this one changes, existing rows can no longer be verified.
    #[test]
    fn decision_hash_is_stable() {
        let head = ChainHead::default().with_row(WriterId(7), &row());
        assert_eq!(head.rows, 1);
        assert_eq!(head.hash.to_string(), "7e6871157297e80867cd9eea0a3135aec5c464b323605497b4c88c471b93522d");
    }

    #[test]
    fn decision_hash_covers_every_field() {
        let AuditedDecision { access_request, decision, .. } = decided();
        let with = |access_request: AccessRequest| AuditRow::decision(access_request, decision);
        let person = |id, role| Principal::Person { id: PersonId(id), role };
        let rows = [
            row(),
            AuditRow::decision(access_request.clone(), Decision::Allowed),
            with(AccessRequest { by: Principal::Operator, ..access_request.clone() }),
            with(AccessRequest { by: person(4, Role::Consultant), ..access_request.clone() }),
            with(AccessRequest { by: person(3, Role::Partner), ..access_request.clone() }),
            with(AccessRequest { action: Action::EditClient, ..access_request.clone() }),
            with(AccessRequest { client: None, ..access_request.clone() }),
            with(AccessRequest { client: Some(ClientId(0)), ..access_request.clone() }),
            with(AccessRequest { at: UnixMillis(access_request.at.0 + 1), ..access_request.clone() }),
            with(AccessRequest { request_id: RequestId::from_stored("req_2".to_owned()), ..access_request }),
        ];
        assert_distinct_hashes(&rows);
    }

    #[test]
    fn event_hash_covers_every_field() {
        let kind = EventKind::RoleChanged;
        let (consultant, partner) = (Some(Role::Consultant), Some(Role::Partner));
        let event =
            AuditEvent { old_role: consultant, new_role: partner, ..AuditEvent::new(kind, PersonId(4)) };
        let effect = |event| AuditRow::Decision(AuditedDecision { effect: Some(event), ..decided() });
        let invited = |address: &str| {
            let (effect, invited) = (Some(event), Some(address.parse().unwrap()));
            AuditRow::Decision(AuditedDecision { effect, invited, ..decided() })
        };
        let origin = EventOrigin {
            ip: Some("192.0.2.7".parse().unwrap()),
            at: UnixMillis(1_794_744_000_000),
            request_id: RequestId::from_stored("req_1".to_owned()),
        };
        let happened =
            AuditedEvent { by: Some((PersonId(4), Role::Consultant)), event, origin: origin.clone() };
        let with = |origin| AuditRow::Event(AuditedEvent { origin, ..happened.clone() });
        assert_distinct_hashes(&[
            row(),
            effect(event),
            effect(AuditEvent { kind: EventKind::PersonPromoted, ..event }),
            effect(AuditEvent { subject: Some(PersonId(5)), ..event }),
            effect(AuditEvent { subject: None, ..event }),
            effect(AuditEvent { old_role: None, ..event }),
            effect(AuditEvent { old_role: None, new_role: consultant, ..event }),
            effect(AuditEvent { new_role: None, ..event }),
            invited("nora@example.com"),
            invited("nora+x@example.com"),
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
    fn event_names_never_equal_action_names() {
        for kind in EventKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
            assert!(kind.as_str().parse::<Action>().is_err(), "{kind}");
        }
    }

    fn assert_distinct_hashes(rows: &[AuditRow]) {
        let hashes: Vec<ChainHash> =
            rows.iter().map(|row| ChainHead::default().next_hash(WriterId(7), row)).collect();
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "hash {index} is that of another row");
        }
    }
}
