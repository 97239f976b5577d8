//! The queries about secrets that all nodes on a database share.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::explain;
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::{SharedSecrets, StoreError};
use chancery_domain::SecretToken;

stored_row! {
    struct StoredSecret {
        secret: String,
    }
}

/// Changes nothing where there is one already, and gives that one.
const KEEP_FIRST: &str = "INSERT INTO shared_secrets (name, secret) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING secret";

for_both_stores! {
    impl SharedSecrets {
        async fn shared_secret(&self, name: &str, drawn: &SecretToken) -> Result<SecretToken, StoreError> {
            let kept = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(KEEP_FIRST).bind(name).bind(drawn.reveal()).fetch_all(&mut *connection)
            });
            let rows: Vec<StoredSecret> = kept.map_err(|error| explain(&error))?;
            rows.first().and_then(|row| SecretToken::parse(&row.secret)).ok_or_else(|| StoreError::Corrupt {
                what: "a shared secret",
                why: format!("{name} is not one of ours"),
            })
        }
    }
}
