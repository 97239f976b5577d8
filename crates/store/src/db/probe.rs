//! Whether the database answers, for a server that starts: one that cannot be reached may come up later, one that rejects us
//! will do so again.

use crate::db::error_codes::{is_unreachable, map_db_error};
use crate::db::postgres::{PostgresConnector, connect, connect_options, location};
use crate::db::url::DatabaseLocation;
use crate::db::write_slot::Connector;
use crate::{DatabaseUrl, DbError};

/// The texts contain no password.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{location} is not reachable: {why}")]
    Unreachable { location: String, why: String },
    #[error("{location} rejects the connection: {why}")]
    Rejected { location: String, why: String },
}

/// Connects once. A SQLite file needs no server, so there is nothing to wait for.
pub async fn probe(url: &DatabaseUrl) -> Result<(), ProbeError> {
    let DatabaseLocation::Postgres(options) = &url.0 else { return Ok(()) };
    let options = connect_options(options);
    match connect(&options).await {
        Ok(connection) => {
            PostgresConnector::disconnect(connection).await;
            Ok(())
        }
        Err(error) => {
            let why = match map_db_error(&error) {
                DbError::Unavailable(why) => why,
                other => other.to_string(),
            };
            let location = location(&options);
            Err(match is_unreachable(&error) {
                true => ProbeError::Unreachable { location, why },
                false => ProbeError::Rejected { location, why },
            })
        }
    }
}
