//! `/jwks.json`: the public keys that verify our signatures.

use super::discovery::cacheable_json;
use super::limits::JWKS_MAX_AGE;
use super::signing_keys::{KeyError, key_ring};
use crate::Provider;
use axum::extract::State;
use axum::response::Response;
use chancery_web::ErrorPage;
use std::sync::Arc;

pub(crate) async fn show(State(provider): State<Arc<Provider>>) -> Result<Response, ErrorPage> {
    let keys = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), provider.clock.now()).await;
    let keys = keys.map_err(key_error_page)?.published();
    Ok(cacheable_json(&keys, JWKS_MAX_AGE))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is the last to see the error, as a `map_err` hands it over"
)]
pub(super) fn key_error_page(error: KeyError) -> ErrorPage {
    match &error {
        KeyError::Store(_) => ErrorPage::unavailable(error.to_string()),
        KeyError::NotCreated => ErrorPage::internal(error.to_string()),
    }
}
