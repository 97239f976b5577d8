//! The queries about secrets that all nodes on a database share.

use crate::DbError;
use crate::db::{COMMAND_WAIT, Db, query};
use chancery_domain::SecretToken;

/// Changes nothing where there is one already, and gives that one.
const INSERT_OR_GET: &str = "INSERT INTO shared_secrets (name, secret) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING secret";

/// What nodes must agree on without anybody setting it.
#[derive(Clone)]
pub struct SharedSecrets {
    pub(crate) db: Db,
}

impl SharedSecrets {
    /// The secret of this name: the one that was drawn first, by whichever node.
    pub async fn shared_secret(&self, name: &str, drawn: &SecretToken) -> Result<SecretToken, DbError> {
        let insert = query(INSERT_OR_GET).bind(name).bind(drawn.reveal());
        let stored: Vec<String> = self.db.write_returning(insert, COMMAND_WAIT).await?;
        stored.first().and_then(|secret| SecretToken::parse(secret)).ok_or_else(|| DbError::Corrupt {
            what: "a shared secret",
            why: format!("{name} is not one of ours"),
        })
    }
}
