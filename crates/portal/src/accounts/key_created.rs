//! The page that shows a new key once. It is the direct reply to the form and has no URL of its own, so nothing that can be
//! reopened, forwarded or logged contains the key. On a reload the browser asks whether to submit the form again; if the user
//! confirms, nothing is created or rotated: the form names the key or the secret that it is for. The page is never cached
//! (`no-store`). If the reply is lost, the key is still listed, was never used, and can be revoked.

use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::DisplayTime;
use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use chancery_domain::{AccountId, ApiKey, UnixMillis};
use chancery_web::page;
use serde_json::json;

#[derive(Template)]
#[template(path = "accounts/key_created.html")]
struct KeyCreated<'a> {
    frame: Frame<'a>,
    secret: &'a str,
    prefix: String,
    label: &'a str,
    account: Option<AccountId>,
    is_expired: bool,
    /// Whether the key was rotated, not created.
    is_rotated: bool,
    /// After a rotation: until when the old key works. `None` if it does not.
    old_works_until: Option<DisplayTime>,
    back: String,
    curl: String,
}

/// A key that was just created or rotated.
pub(super) struct ShownKey<'a> {
    pub(super) secret: &'a ApiKey,
    pub(super) account: Option<AccountId>,
    pub(super) label: &'a str,
    pub(super) is_expired: bool,
    pub(super) rotation: Option<ShownRotation>,
}

/// What a rotation did to the old key.
#[derive(Clone, Copy)]
pub(super) struct ShownRotation {
    /// `None`: it no longer works.
    pub(super) old_works_until: Option<UnixMillis>,
}

pub(super) async fn key_created(
    portal: &Portal,
    signed_in: &SignedIn,
    ShownKey { secret, account, label, is_expired, rotation }: ShownKey<'_>,
) -> Result<Response, PageError> {
    let local = signed_in.local_time(portal);
    let created = KeyCreated {
        frame: Frame::new(portal, signed_in, Section::Accounts),
        secret: secret.reveal(),
        prefix: secret.prefix().to_string(),
        label,
        account,
        is_expired,
        is_rotated: rotation.is_some(),
        old_works_until: rotation
            .and_then(|rotation| rotation.old_works_until)
            .map(|at| DisplayTime::new(at, &local)),
        back: account.map_or_else(|| "/accounts".to_owned(), |account| format!("/accounts/{account}")),
        curl: curl(&portal.settings.api.url, portal.settings.api.model.as_deref()),
    };
    let mut response = page(StatusCode::OK, &created)?;
    // Every page has this header by default; here it is mandatory.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The key itself is not in the command, because shells store commands in their history.
fn curl(api_url: &str, model: Option<&str>) -> String {
    let Some(model) = model else {
        return format!("curl {api_url}/v1/models -H \"Authorization: Bearer $CHANCERY_API_KEY\"");
    };
    let body = json!({
        "model": model,
        "instructions": "Answer in one short sentence.",
        "input": "What is a ledger?",
        "max_output_tokens": 64,
    });
    // Within single quotes, a shell interprets nothing but the quote itself.
    let body = body.to_string().replace('\'', r"'\''");
    format!(
        "curl {api_url}/v1/generate \\\n  -H \"Authorization: Bearer $CHANCERY_API_KEY\" \\\n  \
         -H 'Content-Type: application/json' \\\n  -d '{body}'"
    )
}
