//! The command line as it stands before the policy: whoever has it has the database too, and is on record like everybody.

use anyhow::bail;
use chancery_domain::{Asker, Clock, OsRandomness, RequestId, SystemClock};
use chancery_policy::{Act, Asking, Permit, Policy};
use chancery_store::AdminStore;

/// One command's questions; they go on record under one id.
pub struct Operator {
    policy: Policy,
    asking: Asking,
}

impl Operator {
    pub fn new() -> anyhow::Result<Self> {
        let at = SystemClock.now();
        let request_id = RequestId::new(at, &OsRandomness);
        Ok(Self { policy: Policy::load()?, asking: Asking { by: Asker::Operator, at, request_id } })
    }

    /// A refusal is written down before it is told.
    pub async fn ask<A: Act>(&self, store: &AdminStore, about: A::About) -> anyhow::Result<Permit<A>> {
        match self.policy.decide(&self.asking, about) {
            Ok(permit) => Ok(permit),
            Err(denial) => {
                let action = denial.asked().action;
                store.audit.note_denial(denial).await?;
                bail!("policies/portal.cedar does not allow the command line {action}")
            }
        }
    }
}
