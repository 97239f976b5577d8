//! Where accounts, keys and the ledger are kept: SQLite for one machine, PostgreSQL for many, behind the same traits.
//! Each method is one atomic step named after what happens; no transaction and no SQL leaves this crate.

mod accounts;
mod both;
mod error;
mod failure;
mod health;
mod keys;
mod ledger;
mod ledger_insert;
mod ledger_writer;
mod migrations;
mod postgres;
mod slot;
mod sqlite;
mod traits;
mod url;

pub use error::StoreError;
pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;
pub use traits::{
    Accounts, Health, KeyOwner, Keys, Ledger, LimitsChange, NewAccount, NewKey, Store, UsageBy, UsageGroup,
    UsageQuery, UsageSum,
};
pub use url::DatabaseUrl;

use std::sync::Arc;

/// Opens the database that the URL names and brings its schema up to this program's; a newer one is refused. Needs a
/// tokio runtime, for it starts the task that writes the ledger. Call `Health::close` before the runtime ends.
pub async fn open(url: &DatabaseUrl) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match &url.0 {
        url::Place::Sqlite(file) => Arc::new(SqliteStore::open(file).await?),
        url::Place::Postgres(_) => Arc::new(PostgresStore::open(url).await?),
    })
}
