//! Queries for secrets that all nodes on a database share.

use super::column::SHARED_SECRET;
use super::keyring::Keyring;
use crate::DbError;
use crate::db::{Db, query};
use chancery_domain::SecretToken;

const ADD: &str = "INSERT INTO shared_secrets (name, secret) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
const FIND: &str = "SELECT secret FROM shared_secrets WHERE name = $1";

/// Secrets that nodes must agree on without configuration.
#[derive(Clone)]
pub struct SharedSecrets {
    pub(crate) db: Db,
    pub(crate) keyring: Keyring,
}

impl SharedSecrets {
    /// The secret of this name. The first node to call this stores the one it generated.
    pub async fn shared_secret(&self, name: &str, new_secret: &SecretToken) -> Result<SecretToken, DbError> {
        let args = (&self.keyring, name, new_secret);
        let stored = self.db.run::<_, String, DbError>(&args, |conn, (keyring, name, new_secret)| {
            Box::pin(async move {
                let row = name.as_bytes();
                let stored: Option<Vec<u8>> = query(FIND).bind(*name).fetch_optional(conn).await?;
                let stored = match stored {
                    Some(stored) => stored,
                    None => {
                        let secret = new_secret.reveal().as_bytes();
                        let sealed = keyring.seal(conn, SHARED_SECRET, row, secret).await?;
                        query(ADD).bind(*name).bind(sealed).execute(conn).await?;
                        // Another node may have been faster.
                        query(FIND).bind(*name).fetch_one(conn).await?
                    }
                };
                Ok(keyring.open_text(SHARED_SECRET, row, &stored)?)
            })
        });
        SecretToken::parse(&stored.await?)
            .ok_or_else(|| DbError::Corrupt { what: "a shared secret", why: format!("{name} is unknown") })
    }
}
