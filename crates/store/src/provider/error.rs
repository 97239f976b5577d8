//! Errors of the identity provider's accounts. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::QueryError;
use chancery_domain::EmailAddress;

#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error("the identity provider already has an account with the address {0}")]
    EmailTaken(EmailAddress),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for ProviderError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
