//! `GET /clients`: the clients that a person may read. No records are kept yet, so there are none.

use crate::frame::{Frame, Section};
use crate::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::Role;
use chancery_pages::{Refusal, page, wants_json};
use serde_json::json;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "clients.html")]
struct ClientsPage<'a> {
    frame: Frame<'a>,
    is_partner: bool,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if wants_json(&headers) {
        return Ok(Json(json!({"clients": [], "page": 1, "pages": 1, "total": 0})).into_response());
    }
    let frame = Frame::new(&portal, &signed_in, Section::Clients);
    page(StatusCode::OK, &ClientsPage { frame, is_partner: signed_in.person.role == Role::Partner })
}
