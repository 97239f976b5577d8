//! Policy checks for the command line. Anyone who can run it can also open the database, but its actions are audited like
//! anyone else's.

use anyhow::bail;
use chancery_domain::{Clock, OsRandomness, Principal, RequestId, SystemClock};
use chancery_policy::{AuthzAction, AuthzRequest, Denial, Permit, Policy};
use chancery_store::AdminStore;

/// Authorizes one command; all of its decisions share one request id in the audit log.
pub struct Operator {
    policy: Policy,
    authz_request: AuthzRequest,
}

impl Operator {
    pub fn new() -> anyhow::Result<Self> {
        let at = SystemClock.now();
        let request_id = RequestId::new(at, &OsRandomness);
        Ok(Self {
            policy: Policy::load()?,
            authz_request: AuthzRequest { by: Principal::Operator, at, request_id },
        })
    }

    pub fn decide<A: AuthzAction>(&self, resource: A::Resource) -> Result<Permit<A>, Denial> {
        self.policy.decide(&self.authz_request, resource)
    }

    /// Records a denial in the audit log before reporting it.
    pub async fn authorize<A: AuthzAction>(
        &self,
        store: &AdminStore,
        resource: A::Resource,
    ) -> anyhow::Result<Permit<A>> {
        match self.decide(resource) {
            Ok(permit) => Ok(permit),
            Err(denial) => {
                let action = denial.access_request().action;
                store.audit.record_denial(denial).await?;
                bail!("denied by policies/portal.cedar: command line, {action}")
            }
        }
    }
}
