//! Queries for known devices: browsers in which a person has signed in before. Several people may use one browser, which
//! then has one token and a row for each of them.

use crate::DbError;
use crate::NewKnownDevice;
use crate::db::{COMMAND_RETRY_LIMIT, Db, Query, Tx, query};
use chancery_domain::{EmailAddress, TokenHash, UnixMillis};

/// The devices used least recently are deleted beyond this.
pub const MAX_KNOWN_DEVICES: u32 = 10;

const IS_KNOWN: &str = "SELECT COUNT(*) FROM known_devices d JOIN provider_accounts a ON a.subject = d.subject \
    WHERE d.token_hash = $1 AND a.email = $2 AND d.expires_at_ms > $3";
const IS_OURS: &str = "SELECT COUNT(*) FROM known_devices WHERE token_hash = $1 AND expires_at_ms > $2";
const REMEMBER: &str = "INSERT INTO known_devices (subject, token_hash, expires_at_ms) VALUES ($1, $2, $3) \
    ON CONFLICT (subject, token_hash) DO UPDATE SET expires_at_ms = excluded.expires_at_ms";
const DELETE_EXCESS: &str = "DELETE FROM known_devices WHERE subject = $1 AND token_hash <> $2 AND token_hash NOT IN \
    (SELECT d.token_hash FROM known_devices d WHERE d.subject = $1 AND d.token_hash <> $2 \
    ORDER BY d.expires_at_ms DESC, d.token_hash LIMIT $3)";
const DELETE_OF_SUBJECT: &str = "DELETE FROM known_devices WHERE subject = $1";
const DELETE_EXPIRED: &str = "DELETE FROM known_devices WHERE (subject, token_hash) IN \
    (SELECT d.subject, d.token_hash FROM known_devices d WHERE d.expires_at_ms <= $1 LIMIT $2)";

/// A new password ends what the old one proved.
pub(super) fn delete_of_subject(subject: &str) -> Query {
    query(DELETE_OF_SUBJECT).bind(subject)
}

/// Known devices of the identity provider's accounts.
#[derive(Clone)]
pub struct KnownDevices {
    pub(crate) db: Db,
}

impl KnownDevices {
    /// Whether the account with this address was signed in with this device.
    pub async fn is_known_device(
        &self,
        token: TokenHash,
        email: &EmailAddress,
        now: UnixMillis,
    ) -> Result<bool, DbError> {
        let find = query(IS_KNOWN).bind(token.0.as_slice()).bind(email.as_str()).bind(now.0);
        Ok(self.db.fetch_one::<u64>(find).await? > 0)
    }

    /// Whether any account was signed in with this device.
    pub async fn is_known_device_of_anyone(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<bool, DbError> {
        let find = query(IS_OURS).bind(token.0.as_slice()).bind(now.0);
        Ok(self.db.fetch_one::<u64>(find).await? > 0)
    }

    /// Remembers the device, and deletes the account's oldest ones beyond `MAX_KNOWN_DEVICES`. The browser's own token is
    /// used again if it is one of ours. Returns whether it was; otherwise the browser gets the new token.
    pub async fn remember_device(&self, new: NewKnownDevice) -> Result<bool, DbError> {
        let step = move |tx: &mut Tx<'_>| {
            let mut own = None;
            if let Some(token) = new.browser_token {
                let find = query(IS_OURS).bind(token.0.as_slice()).bind(new.now.0);
                own = (find.fetch_one::<u64>(tx)? > 0).then_some(token);
            }
            let token = own.unwrap_or(new.new_token);
            let remember =
                query(REMEMBER).bind(new.subject.as_str()).bind(token.0.as_slice()).bind(new.expires_at.0);
            remember.execute(tx)?;
            let delete = query(DELETE_EXCESS)
                .bind(new.subject.as_str())
                .bind(token.0.as_slice())
                .bind(i64::from(MAX_KNOWN_DEVICES) - 1);
            delete.execute(tx)?;
            Ok::<_, DbError>(own.is_some())
        };
        self.db.write(step).await
    }

    /// Deletes up to `limit` expired devices and returns how many.
    pub async fn delete_expired_devices(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
