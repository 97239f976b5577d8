//! Shared secrets as the rest of Chancery sees them.

use crate::StoreError;
use async_trait::async_trait;
use chancery_domain::SecretToken;

/// What nodes must agree on without anybody setting it.
#[async_trait]
pub trait SharedSecrets: Send + Sync + 'static {
    /// The secret of this name: the one that was drawn first, by whichever node.
    async fn shared_secret(&self, name: &str, drawn: &SecretToken) -> Result<SecretToken, StoreError>;
}
