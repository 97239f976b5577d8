//! The navigation bar above an error page for a signed-in user: sections, the user, and sign-out. Only the surface knows these, so it
//! renders the bar.

use async_trait::async_trait;
use axum::http::request::Parts;

#[async_trait]
pub trait BarRenderer: Send + Sync + 'static {
    /// The bar for the sender of this request, as trusted HTML. `None` if nobody is signed in.
    async fn render_bar(&self, parts: &mut Parts) -> Option<String>;
}
