//! Evaluates the policy.

use crate::actions::{AuthzAction, IntoResource, ReadClient, Resource};
use crate::entities::EntityNames;
use crate::permit::{ClientScope, Denial, Permit};
use cedar_policy::{
    ActionConstraint, Authorizer, Context, Decision, Entities, EntityUid, PolicySet, Request, Schema,
    ValidationMode, Validator,
};
use chancery_domain::{AccessRequest, Action, Principal, RequestId, UnixMillis};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

const POLICIES: &str = include_str!("../../../policies/portal.cedar");
const SCHEMA: &str = include_str!("../../../policies/portal.cedarschema");

/// The parsed policies.
#[derive(Debug)]
pub struct Policy {
    /// The policies that name an action, which are few. Cedar evaluates every policy that it is given.
    by_action: HashMap<Action, ActionPolicies>,
    names: EntityNames,
    authorizer: Authorizer,
    evaluations: AtomicU64,
}

#[derive(Debug)]
struct ActionPolicies {
    action: EntityUid,
    policies: PolicySet,
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("policies/portal.cedarschema cannot be read: {0}")]
    Schema(String),
    #[error("policies/portal.cedar cannot be read: {0}")]
    Policies(String),
    #[error("policies/portal.cedar does not fit policies/portal.cedarschema: {0}")]
    Invalid(String),
}

/// The principal, and the request it makes.
#[derive(Clone, Debug)]
pub struct AuthzRequest {
    pub by: Principal,
    pub at: UnixMillis,
    pub request_id: RequestId,
}

impl Policy {
    /// Loads the policies that this program was built with, and validates them against their schema.
    pub fn load() -> Result<Self, PolicyError> {
        Self::parse(POLICIES, SCHEMA)
    }

    fn parse(policies: &str, schema: &str) -> Result<Self, PolicyError> {
        let (schema, warnings) =
            Schema::from_cedarschema_str(schema).map_err(|error| PolicyError::Schema(error.to_string()))?;
        let warnings: Vec<String> = warnings.map(|warning| warning.to_string()).collect();
        if !warnings.is_empty() {
            return Err(PolicyError::Schema(warnings.join("; ")));
        }
        let policies: PolicySet =
            policies.parse().map_err(|error| PolicyError::Policies(format!("{error}")))?;
        let validity = Validator::new(schema).validate(&policies, ValidationMode::Strict);
        if !validity.validation_passed_without_warnings() {
            return Err(PolicyError::Invalid(validity.to_string()));
        }
        let names = EntityNames::parse().map_err(PolicyError::Schema)?;
        let by_action =
            Action::ALL.into_iter().map(|action| Ok((action, policies_of(names.action(action), &policies)?)));
        let by_action = by_action.collect::<Result<_, PolicyError>>()?;
        Ok(Self { by_action, names, authorizer: Authorizer::new(), evaluations: AtomicU64::new(0) })
    }

    /// Decides whether the action is allowed. The result goes to the store in either case: a permit with the step that it is for, a
    /// denial by itself.
    pub fn decide<A: AuthzAction>(
        &self,
        authz_request: &AuthzRequest,
        resource: A::Resource,
    ) -> Result<Permit<A>, Denial> {
        let resource = resource.resource();
        let client = match resource {
            Resource::Client { id, .. } => id,
            Resource::Firm => None,
        };
        let AuthzRequest { by, at, request_id } = authz_request;
        let access_request =
            AccessRequest { by: *by, action: A::ACTION, client, at: *at, request_id: request_id.clone() };
        match self.allows(*by, A::ACTION, resource) {
            true => Ok(Permit::new(access_request, resource, self.scope(*by, A::ACTION))),
            false => Err(Denial::new(access_request)),
        }
    }

    /// For page rendering: hides buttons that would be denied, and colleagues that the person may not see. It gives no access and
    /// writes no audit row; the action itself still needs `decide`.
    pub fn is_allowed<A: AuthzAction>(&self, by: Principal, resource: A::Resource) -> bool {
        self.allows(by, A::ACTION, resource.resource())
    }

    /// Number of Cedar evaluations so far, so that a test can measure the cost of a page.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    /// A principal that may read or export an unowned client may list all of them. Only `ListClients` permits have a scope.
    fn scope(&self, by: Principal, action: Action) -> ClientScope {
        let unowned = Resource::Client { id: None, owner: None };
        match by {
            _ if action != Action::ListClients => ClientScope::Empty,
            by if self.allows(by, ReadClient::ACTION, unowned) => ClientScope::All,
            by if self.allows(by, Action::ExportClient, unowned) => ClientScope::All,
            Principal::Person { id, .. } => ClientScope::OwnedBy(id),
            Principal::Operator => ClientScope::Empty,
        }
    }

    /// Denies whatever cannot be evaluated.
    fn allows(&self, by: Principal, action: Action, resource: Resource) -> bool {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
        let (principal, resource) = (self.names.principal(by), self.names.resource(resource));
        let Some(ActionPolicies { action, policies }) = self.by_action.get(&action) else { return false };
        let request = Request::new(principal.uid(), action.clone(), resource.uid(), Context::empty(), None);
        let entities = Entities::from_entities([principal, resource], None);
        match (request, entities) {
            (Ok(request), Ok(entities)) => {
                let response = self.authorizer.is_authorized(&request, policies, &entities);
                response.decision() == Decision::Allow && response.diagnostics().errors().next().is_none()
            }
            _ => false,
        }
    }
}

/// Leaves out the policies whose scope excludes the action. The schema has no groups of actions, so an action is only `in` itself.
fn policies_of(action: EntityUid, policies: &PolicySet) -> Result<ActionPolicies, PolicyError> {
    let names_action = |policy: &&cedar_policy::Policy| match policy.action_constraint() {
        ActionConstraint::Any => true,
        ActionConstraint::In(actions) => actions.contains(&action),
        ActionConstraint::Eq(only) => only == action,
    };
    let policies = PolicySet::from_policies(policies.policies().filter(names_action).cloned());
    let policies = policies.map_err(|error| PolicyError::Policies(error.to_string()))?;
    Ok(ActionPolicies { action, policies })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use chancery_domain::{ClientId, PersonId, Role};
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::load().unwrap());

    fn person(id: i64, role: Role) -> Principal {
        Principal::Person { id: PersonId(id), role }
    }

    fn authz_request(by: Principal) -> AuthzRequest {
        let request_id = RequestId::from_stored("req_1".to_owned());
        AuthzRequest { by, at: UnixMillis(1_794_744_000_000), request_id }
    }

    fn client(owner: Option<i64>) -> ClientResource {
        ClientResource { id: ClientId(1042), owner: owner.map(PersonId) }
    }

    /// The columns: the owner, another consultant, a consultant for an id that does not exist, a partner, the operator.
    #[test]
    fn policy_matches_specification_table() {
        fn row<A: AuthzAction<Resource = ClientResource>>() -> [bool; 5] {
            let owned = client(Some(1));
            [
                POLICY.is_allowed::<A>(person(1, Role::Consultant), owned),
                POLICY.is_allowed::<A>(person(2, Role::Consultant), owned),
                POLICY.is_allowed::<A>(person(1, Role::Consultant), client(None)),
                POLICY.is_allowed::<A>(person(2, Role::Partner), owned),
                POLICY.is_allowed::<A>(Principal::Operator, owned),
            ]
        }
        assert_eq!(row::<ReadClient>(), [true, false, false, true, false]);
        assert_eq!(row::<EditClient>(), [true, false, false, true, false]);
        assert_eq!(row::<ArchiveClient>(), [true, false, false, true, false]);
        assert_eq!(row::<ReassignClient>(), [false, false, false, true, true]);
        assert_eq!(row::<ExportClient>(), [true, false, false, true, true]);

        fn firm<A: AuthzAction<Resource = FirmResource>>() -> [bool; 3] {
            [person(1, Role::Consultant), person(2, Role::Partner), Principal::Operator]
                .map(|by| POLICY.is_allowed::<A>(by, FirmResource))
        }
        assert_eq!(firm::<ListClients>(), [true, true, true]);
        assert_eq!(firm::<ReadTeam>(), [false, true, true]);
        assert_eq!(firm::<ManageTeam>(), [false, true, true]);
        assert_eq!(firm::<InvitePerson>(), [false, true, true]);
        assert_eq!(firm::<ResetFactors>(), [false, true, true]);
        assert_eq!(firm::<ManageTemplates>(), [false, true, true]);
        assert_eq!(firm::<ReadAudit>(), [false, true, false]);
        let billing = [
            firm::<ReadUsage>(),
            firm::<ReadInvoices>(),
            firm::<ManageInvoices>(),
            firm::<ReadAccounts>(),
            firm::<ManageAccounts>(),
        ];
        assert_eq!(billing, [[false, true, true]; 5]);

        let creates = |by, owner| POLICY.is_allowed::<CreateClient>(by, NewClientResource(PersonId(owner)));
        assert!(creates(person(1, Role::Consultant), 1) && !creates(person(1, Role::Consultant), 2));
        assert!(creates(person(3, Role::Partner), 2) && creates(Principal::Operator, 2));
    }

    #[test]
    fn audit_row_names_principal_action_and_decision() {
        let consultant = person(1, Role::Consultant);
        let permit = POLICY.decide::<ReadClient>(&authz_request(consultant), client(Some(1))).unwrap();
        assert_eq!(permit.client(), Some(ClientId(1042)));
        assert_eq!(permit.owner(), Some(PersonId(1)));
        let listing = POLICY.decide::<ListClients>(&authz_request(consultant), FirmResource).unwrap();
        assert_eq!(listing.scope(), ClientScope::OwnedBy(PersonId(1)));
        let row = permit.to_audit_row();
        let row = row.as_decision().unwrap();
        assert_eq!(row.decision, chancery_domain::Decision::Allowed);
        assert_eq!((row.access_request.by, row.access_request.action), (consultant, Action::ReadClient));

        let denial = POLICY.decide::<ReadClient>(&authz_request(consultant), client(None)).unwrap_err();
        let row = denial.to_audit_row();
        let row = row.as_decision().unwrap();
        assert_eq!(
            (row.decision, row.access_request.client),
            (chancery_domain::Decision::Denied, Some(ClientId(1042)))
        );
    }

    #[test]
    fn policy_schema_mismatch_is_reported_at_load() {
        let misspelt = POLICIES.replace("resource.owner", "resource.onwer");
        let error = Policy::parse(&misspelt, SCHEMA).unwrap_err().to_string();
        assert!(error.contains("does not fit") && error.contains("onwer"), "{error}");
        assert!(matches!(Policy::parse("permit (", SCHEMA), Err(PolicyError::Policies(_))));
        assert!(matches!(Policy::parse(POLICIES, "entity ;"), Err(PolicyError::Schema(_))));
    }

    #[test]
    fn schema_actions_equal_action_enum() {
        let (schema, _) = Schema::from_cedarschema_str(SCHEMA).unwrap();
        let mut declared: Vec<String> =
            schema.actions().map(|action| action.id().unescaped().to_owned()).collect();
        let mut known: Vec<String> = Action::ALL.map(|action| action.to_string()).into();
        declared.sort();
        known.sort();
        assert_eq!(declared, known);
    }

    /// What `policies_of` relies on.
    #[test]
    fn schema_has_no_groups_of_actions() {
        let (schema, _) = Schema::from_cedarschema_str(SCHEMA).unwrap();
        assert_eq!(schema.action_groups().next(), None);
    }

    #[test]
    fn policies_of_an_action_decide_like_all_policies() {
        let all: PolicySet = POLICIES.parse().unwrap();
        let with_all = |by: Principal, action: Action, resource: Resource| {
            let (principal, resource) = (POLICY.names.principal(by), POLICY.names.resource(resource));
            let action = POLICY.names.action(action);
            let request =
                Request::new(principal.uid(), action, resource.uid(), Context::empty(), None).unwrap();
            let entities = Entities::from_entities([principal, resource], None).unwrap();
            Authorizer::new().is_authorized(&request, &all, &entities).decision() == Decision::Allow
        };
        let principals = [
            person(1, Role::Consultant),
            person(2, Role::Consultant),
            person(3, Role::Partner),
            Principal::Operator,
        ];
        let (id, owner) = (Some(ClientId(1042)), Some(PersonId(1)));
        let resources =
            [Resource::Client { id, owner }, Resource::Client { id, owner: None }, Resource::Firm];
        for by in principals {
            for action in Action::ALL {
                for resource in resources {
                    let expected = with_all(by, action, resource);
                    assert_eq!(POLICY.allows(by, action, resource), expected, "{by:?} {action} {resource:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn consultant_reads_only_own_clients(reader in 1_i64..20, owner in prop::option::of(1_i64..20)) {
            let may = POLICY.is_allowed::<ReadClient>(person(reader, Role::Consultant), client(owner));
            prop_assert_eq!(may, owner == Some(reader));
            prop_assert!(POLICY.is_allowed::<ReadClient>(person(reader, Role::Partner), client(owner)));
        }
    }
}
