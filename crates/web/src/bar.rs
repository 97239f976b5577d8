//! What stands above an error page for somebody whom the surface knows: its sections, the person, and the way out. Only the
//! surface knows any of it, so it says how the bar is made.

use async_trait::async_trait;
use axum::http::request::Parts;

#[async_trait]
pub trait Bars: Send + Sync + 'static {
    /// The bar of whoever sent this, as HTML that is put into the page as it is. None for strangers.
    async fn bar_for(&self, asker: &mut Parts) -> Option<String>;
}
