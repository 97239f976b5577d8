//! The results of a decision: permits and denials.

use crate::actions::{AuthzAction, ListClients, Resource};
use chancery_domain::{
    AccessRequest, AuditEvent, AuditRow, AuditedDecision, ClientId, Decision, EmailAddress, PersonId,
    Principal,
};
use std::marker::PhantomData;

/// Proof that the policy allowed this action for this principal in this request. It cannot be constructed or cloned outside
/// this crate.
///
/// ```compile_fail
/// fn twice(permit: chancery_policy::Permit<chancery_policy::ReadClient>) {
///     let _copies = (permit.clone(), permit);
/// }
/// ```
#[derive(Debug)]
#[must_use = "a decision is written down by the store's step that it is for"]
pub struct Permit<A: AuthzAction> {
    access_request: AccessRequest,
    owner: Option<PersonId>,
    scope: ClientScope,
    action: PhantomData<A>,
}

/// Proof that the policy denied the action.
#[derive(Debug)]
#[must_use = "a denial is written down too"]
pub struct Denial {
    access_request: AccessRequest,
}

/// Which clients the principal may read, as a condition for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientScope {
    All,
    OwnedBy(PersonId),
    Empty,
}

impl<A: AuthzAction> Permit<A> {
    pub(crate) fn new(access_request: AccessRequest, resource: Resource, scope: ClientScope) -> Self {
        let owner = match resource {
            Resource::Client { owner, .. } => owner,
            Resource::Firm => None,
        };
        Self { access_request, owner, scope, action: PhantomData }
    }

    pub fn access_request(&self) -> &AccessRequest {
        &self.access_request
    }

    pub fn by(&self) -> Principal {
        self.access_request.by
    }

    /// The client that the permit is for.
    pub fn client(&self) -> Option<ClientId> {
        self.access_request.client
    }

    /// The client's owner at the time of the decision. The store checks that it has not changed.
    pub fn owner(&self) -> Option<PersonId> {
        self.owner
    }

    /// The row for the audit log.
    pub fn to_audit_row(&self) -> AuditRow {
        AuditRow::decision(self.access_request.clone(), Decision::Allowed)
    }

    /// The same, with the change to a person's access.
    pub fn to_audit_row_with_effect(&self, effect: AuditEvent) -> AuditRow {
        let (access_request, decision) = (self.access_request.clone(), Decision::Allowed);
        AuditRow::Decision(AuditedDecision { access_request, decision, effect: Some(effect), invited: None })
    }

    /// The same, for an invitation to this address.
    pub fn to_audit_row_with_invitation(&self, effect: AuditEvent, invited: &EmailAddress) -> AuditRow {
        let (access_request, decision) = (self.access_request.clone(), Decision::Allowed);
        let (effect, invited) = (Some(effect), Some(invited.clone()));
        AuditRow::Decision(AuditedDecision { access_request, decision, effect, invited })
    }

    /// The same, for a client that has been created.
    pub fn to_audit_row_for_client(&self, created: ClientId) -> AuditRow {
        AuditRow::decision(
            AccessRequest { client: Some(created), ..self.access_request.clone() },
            Decision::Allowed,
        )
    }
}

impl Permit<ListClients> {
    pub fn scope(&self) -> ClientScope {
        self.scope
    }
}

impl Denial {
    pub(crate) fn new(access_request: AccessRequest) -> Self {
        Self { access_request }
    }

    pub fn access_request(&self) -> &AccessRequest {
        &self.access_request
    }

    /// The row for the audit log.
    pub fn to_audit_row(&self) -> AuditRow {
        AuditRow::decision(self.access_request.clone(), Decision::Denied)
    }
}
