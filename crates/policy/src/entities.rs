//! Principals and resources as Cedar entities.

use crate::actions::Resource;
use cedar_policy::{Entity, EntityId, EntityTypeName, EntityUid, RestrictedExpression};
use chancery_domain::{Action, PersonId, Principal, Role};
use std::collections::{HashMap, HashSet};

/// The owner of a client without one; person ids start at 1. With it, an id that does not exist is decided like any other, in
/// the same steps and the same time.
const NO_OWNER: PersonId = PersonId(0);

/// Cedar's type names and ids, parsed once.
#[derive(Debug)]
pub(crate) struct EntityNames {
    person: EntityTypeName,
    role: EntityTypeName,
    client: EntityTypeName,
    operator: EntityUid,
    firm: EntityUid,
    action: EntityTypeName,
}

impl EntityNames {
    pub(crate) fn parse() -> Result<Self, String> {
        let type_name = |name: &str| name.parse::<EntityTypeName>().map_err(|error| error.to_string());
        Ok(Self {
            person: type_name("Person")?,
            role: type_name("Role")?,
            client: type_name("Client")?,
            operator: uid(&type_name("Operator")?, "command-line"),
            firm: uid(&type_name("Firm")?, "this"),
            action: type_name("Action")?,
        })
    }

    pub(crate) fn action(&self, action: Action) -> EntityUid {
        uid(&self.action, action.as_str())
    }

    pub(crate) fn principal(&self, principal: Principal) -> Entity {
        match principal {
            Principal::Person { id, role } => {
                let roles = HashSet::from([self.role(role)]);
                Entity::new_no_attrs(self.person(id), roles)
            }
            Principal::Operator => Entity::new_no_attrs(self.operator.clone(), HashSet::new()),
        }
    }

    pub(crate) fn resource(&self, resource: Resource) -> Entity {
        match resource {
            Resource::Client { id, owner } => {
                let id = id.map_or_else(|| "new".to_owned(), |id| id.to_string());
                let owner = self.person(owner.unwrap_or(NO_OWNER));
                let owner = ("owner".to_owned(), RestrictedExpression::new_entity_uid(owner));
                let client = uid(&self.client, &id);
                // An attribute fails only if its evaluation fails, and a plain id needs none. Without the attribute, nothing is allowed.
                Entity::new(client.clone(), HashMap::from([owner]), HashSet::new())
                    .unwrap_or_else(|_| Entity::new_no_attrs(client, HashSet::new()))
            }
            Resource::Firm => Entity::new_no_attrs(self.firm.clone(), HashSet::new()),
        }
    }

    fn person(&self, id: PersonId) -> EntityUid {
        uid(&self.person, &id.to_string())
    }

    fn role(&self, role: Role) -> EntityUid {
        uid(&self.role, role.as_str())
    }
}

fn uid(type_name: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(type_name.clone(), EntityId::new(id))
}
