//! Deletes a person's second factors at the built-in provider, for someone who has lost all of them. It needs a permit
//! and is audited. The person is told by email, which waits in the outbox in the same transaction.

use super::factors::{lock_account, read_factors};
use super::sessions::{NO_SID, end_sessions_of_subject};
use crate::audit::step::AuditedSteps;
use crate::db::{QueryError, Tx, query};
use crate::outbox::messages::enqueue;
use crate::people::rows::{PersonRow, lock_person};
use crate::people::sessions::end_sessions_of;
use crate::{AccountFactors, DbError, IsConfirmed, NewMessage};
use chancery_domain::{AuditEvent, AuditRow, EventKind, PersonId};
use chancery_policy::{Permit, ResetFactors};
use std::sync::Arc;
use tokio::sync::Notify;

/// The texts are for the command line and for logs; the portal writes its own.
#[derive(Debug, thiserror::Error)]
pub enum FactorResetError {
    #[error("there is no person number {0}")]
    NoSuchPerson(PersonId),
    /// Someone who took over a session could remove what protects the account.
    #[error("people cannot reset their own second factors")]
    OwnFactors,
    #[error("the person has no account at the built-in identity provider")]
    NoProviderAccount,
    /// The caller has not confirmed how many factors and recovery codes the person would lose.
    #[error("the reset of these second factors is not confirmed")]
    Unconfirmed(AccountFactors),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for FactorResetError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}

const ACCOUNTS: &str = "SELECT COUNT(*) FROM provider_accounts WHERE subject = $1";
const DELETE: [&str; 3] = [
    "DELETE FROM passkeys WHERE subject = $1",
    "DELETE FROM totp_secrets WHERE subject = $1",
    "DELETE FROM recovery_codes WHERE subject = $1",
];

/// The outcome, or why it was rejected. The decision is audited in either case.
type Outcome = (Result<(), FactorResetError>, Vec<AuditRow>);

fn reset(
    tx: &mut Tx<'_>,
    permit: &Permit<ResetFactors>,
    person: PersonId,
    notice: &NewMessage,
    is_confirmed: &IsConfirmed,
) -> Result<Outcome, FactorResetError> {
    let rejected = |why| Ok((Err(why), vec![permit.to_audit_row()]));
    if permit.by().person() == Some(person) {
        return rejected(FactorResetError::OwnFactors);
    }
    let Some(PersonRow { person: known, removed_at: None }) = lock_person(tx, person)? else {
        return rejected(FactorResetError::NoSuchPerson(person));
    };
    let subject = known.identity.subject.as_str();
    let accounts: u64 = query(ACCOUNTS).bind(subject).fetch_one(tx)?;
    if accounts == 0 {
        return rejected(FactorResetError::NoProviderAccount);
    }
    lock_account(tx, subject)?;
    let factors = read_factors(tx, subject)?;
    if !is_confirmed(factors.count() + factors.recovery_codes) {
        return rejected(FactorResetError::Unconfirmed(factors));
    }
    for delete in DELETE {
        query(delete).bind(subject).execute(tx)?;
    }
    // They may have been started with a factor that someone else has.
    end_sessions_of_subject(tx, subject, NO_SID)?;
    end_sessions_of(tx, &known.identity)?;
    enqueue(tx, std::slice::from_ref(notice))?;
    let effect = AuditEvent::new(EventKind::FactorsReset, person);
    Ok((Ok(()), vec![permit.to_audit_row_with_effect(effect)]))
}

/// Resets of second factors.
#[derive(Clone)]
pub struct FactorResets {
    pub(crate) audited: AuditedSteps,
    /// Wakes the worker of back-channel logout.
    pub(crate) logout_wake: Arc<Notify>,
}

impl FactorResets {
    /// Deletes the person's passkeys, authenticator app and recovery codes, ends their sessions at the provider and in the
    /// portal, announces that to the applications, and enqueues the notice. The caller has checked that the person's issuer is the built-in
    /// provider. Wake the outbox's worker afterwards.
    pub async fn reset_factors(
        &self,
        permit: Permit<ResetFactors>,
        person: PersonId,
        notice: &NewMessage,
        is_confirmed: IsConfirmed,
    ) -> Result<(), FactorResetError> {
        let notice = notice.clone();
        let outcome = self
            .audited
            .run_as(vec![permit.by()], move |tx| reset(tx, &permit, person, &notice, &is_confirmed))
            .await?;
        self.logout_wake.notify_one();
        outcome
    }

    /// Audits the decision that the principal may reset factors, if there is nothing to change.
    pub async fn record_reset_decision(&self, permit: Permit<ResetFactors>) -> Result<(), FactorResetError> {
        Ok(self.audited.record(vec![permit.to_audit_row()]).await?)
    }
}
