//! Queries for secrets that all nodes on a database share.

use super::column::SHARED_SECRET;
use super::keyring::Keyring;
use crate::DbError;
use crate::db::{Db, Tx, query};
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
        let (keyring, row_name, new_secret) = (self.keyring.clone(), name.to_owned(), new_secret.clone());
        let step = move |tx: &mut Tx<'_>| {
            let (name, row) = (row_name.as_str(), row_name.as_bytes());
            let stored: Option<Vec<u8>> = query(FIND).bind(name).fetch_optional(tx)?;
            let stored = match stored {
                Some(stored) => stored,
                None => {
                    let sealed = keyring.seal(tx, SHARED_SECRET, row, new_secret.reveal().as_bytes())?;
                    query(ADD).bind(name).bind(sealed).execute(tx)?;
                    // Another node may have been faster.
                    query(FIND).bind(name).fetch_one(tx)?
                }
            };
            keyring.open_text(SHARED_SECRET, row, &stored)
        };
        let stored = self.db.write(step).await?;
        SecretToken::parse(&stored)
            .ok_or_else(|| DbError::Corrupt { what: "a shared secret", why: format!("{name} is unknown") })
    }
}
