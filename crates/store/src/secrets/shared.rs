//! Queries for secrets that all nodes on a database share.

use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, query};
use chancery_domain::SecretToken;

/// Returns the existing secret, if there is one, and changes nothing.
const INSERT_OR_GET: &str = "INSERT INTO shared_secrets (name, secret) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING secret";

/// Secrets that nodes must agree on without configuration.
#[derive(Clone)]
pub struct SharedSecrets {
    pub(crate) db: Db,
}

impl SharedSecrets {
    /// The secret of this name. The first node to call this stores the one it generated.
    pub async fn shared_secret(&self, name: &str, new_secret: &SecretToken) -> Result<SecretToken, DbError> {
        let insert = query(INSERT_OR_GET).bind(name).bind(new_secret.reveal());
        let stored: Vec<String> = self.db.write_returning(insert, COMMAND_RETRY_LIMIT).await?;
        stored
            .first()
            .and_then(|secret| SecretToken::parse(secret))
            .ok_or_else(|| DbError::Corrupt { what: "a shared secret", why: format!("{name} is unknown") })
    }
}
