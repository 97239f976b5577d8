//! What a decision leaves behind.

use crate::acts::{Act, ListClients, Resource};
use chancery_domain::{Asked, Asker, AuditEvent, AuditRow, AuditedDecision, ClientId, Decision, PersonId};
use std::marker::PhantomData;

/// The policy allows this act, for this asker, in this request. It cannot be made or copied: who has one asked for it.
///
/// ```compile_fail
/// fn twice(permit: chancery_policy::Permit<chancery_policy::ReadClient>) {
///     let _copies = (permit.clone(), permit);
/// }
/// ```
#[derive(Debug)]
#[must_use = "a decision is written down by the store's step that it is for"]
pub struct Permit<A: Act> {
    asked: Asked,
    owner: Option<PersonId>,
    scope: Scope,
    act: PhantomData<A>,
}

/// The policy does not allow it.
#[derive(Debug)]
#[must_use = "a refusal is written down too"]
pub struct Denial {
    asked: Asked,
}

/// Which clients the asker may read, as a list's condition has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    OwnedBy(PersonId),
    Nothing,
}

impl<A: Act> Permit<A> {
    pub(crate) fn new(asked: Asked, resource: Resource, scope: Scope) -> Self {
        let owner = match resource {
            Resource::Client { owner, .. } => owner,
            Resource::Firm => None,
        };
        Self { asked, owner, scope, act: PhantomData }
    }

    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    pub fn by(&self) -> Asker {
        self.asked.by
    }

    /// The client that it is for.
    pub fn client(&self) -> Option<ClientId> {
        self.asked.client
    }

    /// Whose client it was when this was decided. The store makes sure that it still is.
    pub fn owner(&self) -> Option<PersonId> {
        self.owner
    }

    /// What goes on record.
    pub fn to_audit_row(&self) -> AuditRow {
        AuditRow::decision(self.asked.clone(), Decision::Allowed)
    }

    /// The same, with what was done about somebody's access.
    pub fn to_audit_row_with(&self, effect: AuditEvent) -> AuditRow {
        let (asked, decision) = (self.asked.clone(), Decision::Allowed);
        AuditRow::Decision(AuditedDecision { asked, decision, effect: Some(effect) })
    }

    /// The same, for a client that has been created.
    pub fn to_audit_row_of(&self, created: ClientId) -> AuditRow {
        AuditRow::decision(Asked { client: Some(created), ..self.asked.clone() }, Decision::Allowed)
    }
}

impl Permit<ListClients> {
    /// Which clients the asker may read.
    pub fn scope(&self) -> Scope {
        self.scope
    }
}

impl Denial {
    pub(crate) fn new(asked: Asked) -> Self {
        Self { asked }
    }

    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// What goes on record.
    pub fn to_audit_row(&self) -> AuditRow {
        AuditRow::decision(self.asked.clone(), Decision::Refused)
    }
}
