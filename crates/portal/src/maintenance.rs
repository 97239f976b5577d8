//! Deletes expired data: ended sessions, abandoned sign-ins, expired throttles and invitations, used logout tokens, old
//! unsaved text, and emails in the outbox older than a day. Correctness does not depend on it: expired data is rejected whether deleted or
//! not.

use crate::state::Portal;
use chancery_store::{DbError, InvitationError, MAX_SIGN_INS, PersonError};
use std::sync::Arc;
use std::time::Duration;

const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Rows deleted in one transaction, so that nobody waits long for the database.
const BATCH_ROWS: u32 = 500;
/// Batches per run; the rest waits for the next run.
const MAX_BATCHES: u32 = 100;

#[derive(Debug, thiserror::Error)]
pub(crate) enum MaintenanceError {
    #[error(transparent)]
    Person(#[from] PersonError),
    #[error(transparent)]
    Invitation(#[from] InvitationError),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// Runs forever; spawn it beside the server.
pub async fn run_maintenance(portal: Arc<Portal>) {
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        if let Err(error) = run_maintenance_once(&portal).await {
            tracing::warn!(%error, "deleting expired sessions and sign-ins failed, retrying");
        }
        if let Err(error) = portal.mailer.delete_expired_emails().await {
            tracing::warn!(%error, "deleting expired emails failed, retrying");
        }
    }
}

pub(crate) async fn run_maintenance_once(portal: &Portal) -> Result<u64, MaintenanceError> {
    let mut deleted = 0;
    for _ in 0..MAX_BATCHES {
        let now = portal.clock.now();
        let sessions = portal
            .store
            .sessions
            .delete_expired_sessions(portal.settings.session_times, now, BATCH_ROWS)
            .await?;
        let sign_ins = portal.store.sign_ins.delete_expired_sign_ins(now, BATCH_ROWS, MAX_SIGN_INS).await?;
        let throttles = portal.store.throttles.delete_expired_throttles(now, BATCH_ROWS).await?;
        let logout_tokens = portal.store.sessions.delete_expired_logout_tokens(now, BATCH_ROWS).await?;
        let invitations = portal.store.invitations.delete_expired_invitations(now, BATCH_ROWS).await?;
        let unsaved_texts = portal.store.clients.delete_expired_unsaved_texts(now, BATCH_ROWS).await?;
        let step = sessions + sign_ins + throttles + logout_tokens + invitations + unsaved_texts;
        deleted += step;
        if step < u64::from(BATCH_ROWS) {
            break;
        }
    }
    Ok(deleted)
}
