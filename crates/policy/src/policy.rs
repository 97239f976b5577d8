//! The decision.

use crate::acts::{About, Act, ReadClient, Resource};
use crate::entities::Names;
use crate::permit::{Denial, Permit, Scope};
use cedar_policy::{
    Authorizer, Context, Decision, Entities, PolicySet, Request, Schema, ValidationMode, Validator,
};
use chancery_domain::{Action, Asked, Asker, RequestId, UnixMillis};
use std::sync::atomic::{AtomicU64, Ordering};

const POLICIES: &str = include_str!("../../../policies/portal.cedar");
const SCHEMA: &str = include_str!("../../../policies/portal.cedarschema");

/// The rules, ready to be asked.
#[derive(Debug)]
pub struct Policy {
    policies: PolicySet,
    names: Names,
    authorizer: Authorizer,
    evaluations: AtomicU64,
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

/// Who asks, in which request.
#[derive(Clone, Debug)]
pub struct Asking {
    pub by: Asker,
    pub at: UnixMillis,
    pub request_id: RequestId,
}

impl Policy {
    /// The policies that this program was built with, held against their schema.
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
        let names = Names::parse().map_err(PolicyError::Schema)?;
        Ok(Self { policies, names, authorizer: Authorizer::new(), evaluations: AtomicU64::new(0) })
    }

    /// Asks whether this may be done. Whatever the answer, it goes to the store: a permit with the step that it is for, a
    /// denial by itself.
    pub fn decide<A: Act>(&self, asking: &Asking, about: A::About) -> Result<Permit<A>, Denial> {
        let resource = about.resource();
        let client = match resource {
            Resource::Client { id, .. } => id,
            Resource::Firm => None,
        };
        let Asking { by, at, request_id } = asking;
        let asked = Asked { by: *by, action: A::ACTION, client, at: *at, request_id: request_id.clone() };
        match self.allows(*by, A::ACTION, resource) {
            true => Ok(Permit::new(asked, resource, self.scope(*by, A::ACTION))),
            false => Err(Denial::new(asked)),
        }
    }

    /// For what a page offers: nobody is shown a button that would be refused, or colleagues to choose from whom they may not
    /// know. It opens no record and leaves no row: what is done in the end is decided by `decide`.
    pub fn would_allow<A: Act>(&self, by: Asker, about: A::About) -> bool {
        self.allows(by, A::ACTION, about.resource())
    }

    /// How often Cedar was asked so far, so that a test can count what a page costs.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    /// Whoever may read a client that is nobody's may read them all. No other permit lists any, so nothing is asked for it.
    fn scope(&self, by: Asker, action: Action) -> Scope {
        let nobodys = Resource::Client { id: None, owner: None };
        match by {
            _ if action != Action::ListClients => Scope::Nothing,
            by if self.allows(by, ReadClient::ACTION, nobodys) => Scope::All,
            by if self.allows(by, Action::ExportClient, nobodys) => Scope::All,
            Asker::Person { id, .. } => Scope::OwnedBy(id),
            Asker::Operator => Scope::Nothing,
        }
    }

    /// What cannot be evaluated is refused.
    fn allows(&self, by: Asker, action: Action, resource: Resource) -> bool {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
        let (asker, resource) = (self.names.asker(by), self.names.resource(resource));
        let Some(action) = self.names.action(action) else { return false };
        let request = Request::new(asker.uid(), action, resource.uid(), Context::empty(), None);
        let entities = Entities::from_entities([asker, resource], None);
        match (request, entities) {
            (Ok(request), Ok(entities)) => {
                let response = self.authorizer.is_authorized(&request, &self.policies, &entities);
                response.decision() == Decision::Allow && response.diagnostics().errors().next().is_none()
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use chancery_domain::{ClientId, PersonId, Role};
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::load().unwrap());

    fn person(id: i64, role: Role) -> Asker {
        Asker::Person { id: PersonId(id), role }
    }

    fn asking(by: Asker) -> Asking {
        let request_id = RequestId::from_stored("req_1".to_owned());
        Asking { by, at: UnixMillis(1_794_744_000_000), request_id }
    }

    fn client(owner: Option<i64>) -> ClientInQuestion {
        ClientInQuestion { id: ClientId(1042), owner: owner.map(PersonId) }
    }

    /// For each act on a client: may its owner, another consultant, a partner, the command line?
    #[test]
    fn the_rules_are_those_of_the_specification() {
        fn row<A: Act<About = ClientInQuestion>>() -> [bool; 5] {
            let owned = client(Some(1));
            [
                POLICY.would_allow::<A>(person(1, Role::Consultant), owned),
                POLICY.would_allow::<A>(person(2, Role::Consultant), owned),
                POLICY.would_allow::<A>(person(1, Role::Consultant), client(None)),
                POLICY.would_allow::<A>(person(2, Role::Partner), owned),
                POLICY.would_allow::<A>(Asker::Operator, owned),
            ]
        }
        assert_eq!(row::<ReadClient>(), [true, false, false, true, false]);
        assert_eq!(row::<EditClient>(), [true, false, false, true, false]);
        assert_eq!(row::<ArchiveClient>(), [true, false, false, true, false]);
        assert_eq!(row::<ReassignClient>(), [false, false, false, true, true]);
        assert_eq!(row::<ExportClient>(), [true, false, false, true, true]);

        fn firm<A: Act<About = TheFirm>>() -> [bool; 3] {
            [person(1, Role::Consultant), person(2, Role::Partner), Asker::Operator]
                .map(|by| POLICY.would_allow::<A>(by, TheFirm))
        }
        assert_eq!(firm::<ListClients>(), [true, true, true]);
        assert_eq!(firm::<ReadTeam>(), [false, true, true]);
        assert_eq!(firm::<ManageTeam>(), [false, true, true]);
        assert_eq!(firm::<ReadAudit>(), [false, true, false]);
        let billing = [
            firm::<ReadUsage>(),
            firm::<ReadInvoices>(),
            firm::<ManageInvoices>(),
            firm::<ReadAccounts>(),
            firm::<ManageAccounts>(),
        ];
        assert_eq!(billing, [[false, true, true]; 5]);

        let creates = |by, owner| POLICY.would_allow::<CreateClient>(by, NewClientFor(PersonId(owner)));
        assert!(creates(person(1, Role::Consultant), 1) && !creates(person(1, Role::Consultant), 2));
        assert!(creates(person(3, Role::Partner), 2) && creates(Asker::Operator, 2));
    }

    #[test]
    fn a_decision_says_for_the_record_who_asked_for_what_and_what_became_of_it() {
        let consultant = person(1, Role::Consultant);
        let permit = POLICY.decide::<ReadClient>(&asking(consultant), client(Some(1))).unwrap();
        assert_eq!(permit.client(), Some(ClientId(1042)));
        assert_eq!(permit.owner(), Some(PersonId(1)));
        let listing = POLICY.decide::<ListClients>(&asking(consultant), TheFirm).unwrap();
        assert_eq!(listing.scope(), Scope::OwnedBy(PersonId(1)));
        let row = permit.to_audit_row();
        let row = row.as_decision().unwrap();
        assert_eq!(row.decision, chancery_domain::Decision::Allowed);
        assert_eq!((row.asked.by, row.asked.action), (consultant, Action::ReadClient));

        let denial = POLICY.decide::<ReadClient>(&asking(consultant), client(None)).unwrap_err();
        let row = denial.to_audit_row();
        let row = row.as_decision().unwrap();
        assert_eq!(
            (row.decision, row.asked.client),
            (chancery_domain::Decision::Refused, Some(ClientId(1042)))
        );
    }

    #[test]
    fn policies_that_do_not_fit_their_schema_are_named_at_the_start() {
        let misspelt = POLICIES.replace("resource.owner", "resource.onwer");
        let error = Policy::parse(&misspelt, SCHEMA).unwrap_err().to_string();
        assert!(error.contains("does not fit") && error.contains("onwer"), "{error}");
        assert!(matches!(Policy::parse("permit (", SCHEMA), Err(PolicyError::Policies(_))));
        assert!(matches!(Policy::parse(POLICIES, "entity ;"), Err(PolicyError::Schema(_))));
    }

    #[test]
    fn every_action_that_the_program_asks_about_is_in_the_schema_and_no_other() {
        let (schema, _) = Schema::from_cedarschema_str(SCHEMA).unwrap();
        let mut declared: Vec<String> =
            schema.actions().map(|action| action.id().unescaped().to_owned()).collect();
        let mut asked: Vec<String> = Action::ALL.iter().map(|action| action.to_string()).collect();
        declared.sort();
        asked.sort();
        assert_eq!(declared, asked);
    }

    proptest! {
        #[test]
        fn a_consultant_reads_their_own_clients_and_no_others(asker in 1_i64..20, owner in prop::option::of(1_i64..20)) {
            let may = POLICY.would_allow::<ReadClient>(person(asker, Role::Consultant), client(owner));
            prop_assert_eq!(may, owner == Some(asker));
            prop_assert!(POLICY.would_allow::<ReadClient>(person(asker, Role::Partner), client(owner)));
        }
    }
}
