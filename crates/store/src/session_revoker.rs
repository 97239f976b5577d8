//! Ends sessions of the other surface: portal sessions when a password changes at the provider, and provider sessions
//! when a person is signed out or removed in the portal.

use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::people::sessions::end_identity_sessions;
use crate::provider::sessions::{NO_SID, end_subject_sessions};
use crate::{DbError, PersonError};
use chancery_domain::{EventOrigin, Identity};
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Clone)]
pub struct SessionRevoker {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
    /// Wakes the worker of back-channel logout.
    pub(crate) logout_wake: Arc<Notify>,
}

impl SessionRevoker {
    /// For a person whose password was changed. Also ends their sign-ins that wait for a code. Returns the number of
    /// sessions, 0 for an identity that never signed in here.
    pub async fn end_sessions_of_identity(
        &self,
        identity: &Identity,
        origin: &EventOrigin,
    ) -> Result<u64, PersonError> {
        end_identity_sessions(&self.audited, identity, origin).await
    }

    /// Returns the number of provider sessions that were ended. Their applications get logout tokens.
    pub async fn end_provider_sessions(&self, subject: &str) -> Result<u64, DbError> {
        self.end_other_provider_sessions(subject, NO_SID).await
    }

    /// Like `end_provider_sessions`, except for the session that ID tokens name `spared_sid`: its applications stay
    /// signed in.
    pub async fn end_other_provider_sessions(&self, subject: &str, spared_sid: &str) -> Result<u64, DbError> {
        let ended = end_subject_sessions(&self.db, subject, spared_sid).await?;
        self.logout_wake.notify_one();
        Ok(ended)
    }
}
