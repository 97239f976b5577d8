//! Errors of webhooks. The texts are for logs and the command line.

use crate::db::QueryError;
use crate::{DbError, MAX_WEBHOOKS};

#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("no webhook {0}; run `chancery webhook list` to see all webhooks")]
    NoSuchWebhook(String),
    #[error("there are already {MAX_WEBHOOKS} webhooks; remove one first")]
    TooManyWebhooks,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for WebhookError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
