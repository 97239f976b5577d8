//! Forgets what nobody can use any more: sessions that have ended, sign-ins that came to nothing, letters in the outbox that
//! are older than a day. Nothing depends on when: what is over is refused whether it is still there or not.

use crate::state::Portal;
use chancery_store::{MAX_SIGN_INS, PersonError};
use std::sync::Arc;
use std::time::Duration;

/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(60);
/// Rows that go in one step, so that nobody else waits long for the database.
const STEP_ROWS: u32 = 500;
/// Steps of one round; what is left waits for the next.
const MAX_STEPS: u32 = 100;

/// Runs for ever; to be spawned beside the server.
pub async fn keep_tidy(portal: Arc<Portal>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        if let Err(error) = tidy(&portal).await {
            tracing::warn!(%error, "old sessions and sign-ins were not forgotten; trying again in a minute");
        }
        if let Err(error) = portal.mailer.forget_old_letters().await {
            tracing::warn!(%error, "trying again in a minute");
        }
    }
}

pub(crate) async fn tidy(portal: &Portal) -> Result<u64, PersonError> {
    let mut forgotten = 0;
    for _ in 0..MAX_STEPS {
        let now = portal.clock.now();
        let sessions = portal
            .store
            .sessions
            .forget_ended_sessions(portal.settings.session_times, now, STEP_ROWS)
            .await?;
        let sign_ins = portal.store.sign_ins.forget_old_sign_ins(now, STEP_ROWS, MAX_SIGN_INS).await?;
        let throttles = portal.store.throttles.delete_expired_throttles(now, STEP_ROWS).await?;
        let step = sessions + sign_ins + throttles;
        forgotten += step;
        if step < u64::from(STEP_ROWS) {
            break;
        }
    }
    Ok(forgotten)
}
