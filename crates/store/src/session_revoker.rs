//! Ends sessions of the other surface: the portal's when a password changes at the provider, and the provider's when somebody is
//! signed out or removed in the portal.

use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::people::sessions::end_all_of_identity;
use crate::provider::sessions::end_all_of_subject;
use crate::{DbError, PersonError};
use chancery_domain::{EventOrigin, Identity};

#[derive(Clone)]
pub struct SessionRevoker {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl SessionRevoker {
    /// For somebody whose password was changed: their sign-ins under way that wait for a code end too. How many sessions
    /// there were; none for an identity that never signed in here.
    pub async fn end_sessions_of_identity(
        &self,
        identity: &Identity,
        origin: &EventOrigin,
    ) -> Result<u64, PersonError> {
        end_all_of_identity(&self.audited, identity, origin).await
    }

    /// How many sessions at the provider there were.
    pub async fn end_provider_sessions_of(&self, subject: &str) -> Result<u64, DbError> {
        end_all_of_subject(&self.db, subject).await
    }
}
