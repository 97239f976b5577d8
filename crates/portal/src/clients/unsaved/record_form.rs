//! A submitted form of a record. If the session has ended, the text is stored for the person who had opened the form in
//! that session, who gets it back after signing in. The form says who opened it, because someone else may have signed in
//! in the same browser since: their text and their name stay out of it.

use super::fields::{UnsavedFields, form_person, previous_texts};
use crate::clients::record_query::{RecordQuery, RequestedForm};
use crate::path::ClientNumber;
use crate::sign_in::links::sign_in_url;
use crate::sign_in::session::SignedIn;
use crate::sign_in::session_cookie::{sent_binding, sent_session};
use crate::state::Portal;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{ClientId, LocalPath, TokenHash};
use chancery_store::{NewUnsavedText, UnsavedForm};
use chancery_web::ErrorPage;
use serde_json::json;
use std::sync::Arc;

/// Extracts the signed-in person and then the body, as `T`.
pub(crate) struct RecordForm<T> {
    pub(crate) signed_in: SignedIn,
    pub(crate) body: T,
    /// The session of the browser in which the form is open.
    pub(crate) session: Option<TokenHash>,
    /// The editor's texts before earlier drafts, newest first.
    pub(crate) previous_texts: Vec<String>,
}

impl<T: FromRequest<Arc<Portal>>> FromRequest<Arc<Portal>> for RecordForm<T> {
    type Rejection = Response;

    async fn from_request(request: Request, portal: &Arc<Portal>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        // The page layer has limited its size.
        let bytes = to_bytes(body, usize::MAX).await;
        let bytes = bytes.map_err(|error| ErrorPage::internal(error.to_string()).into_response())?;
        let signed_in = match SignedIn::from_request_parts(&mut parts, portal).await {
            Ok(signed_in) => signed_in,
            Err(response) if response.status() == StatusCode::UNAUTHORIZED => {
                return Err(store_text(portal, &mut parts, &bytes, response).await);
            }
            Err(response) => return Err(response),
        };
        if form_person(&bytes).is_some_and(|person| person != signed_in.person.id) {
            return Err(other_person().into_response());
        }
        let (session, previous_texts) = (form_session(portal, &parts.headers), previous_texts(&bytes));
        let request = Request::from_parts(parts, Body::from(bytes));
        let body = T::from_request(request, portal).await.map_err(IntoResponse::into_response)?;
        Ok(Self { signed_in, body, session, previous_texts })
    }
}

/// Identifies the browser in which a form is open, even after its session has ended: a secret that only it has.
pub(crate) fn form_session(portal: &Portal, headers: &HeaderMap) -> Option<TokenHash> {
    match portal.settings.bind_session {
        true => sent_binding(headers),
        false => sent_session(headers).ok().flatten(),
    }
}

/// Stores the text of a form whose session has ended. If it is stored, the page says so.
async fn store_text(
    portal: &Arc<Portal>,
    parts: &mut Parts,
    body: &Bytes,
    mut response: Response,
) -> Response {
    let Ok(ClientNumber(client)) = ClientNumber::from_request_parts(parts, portal).await else {
        return response;
    };
    let fields = UnsavedFields::of(form_urlencoded::parse(body));
    let session = form_session(portal, &parts.headers);
    let (Some(person), Some(session), Ok(fields)) = (form_person(body), session, fields) else {
        return response;
    };
    let text = NewUnsavedText { form: fields.form, session, fields: &fields.json };
    match portal.store.clients.save_text_of_ended_session(person, client, text, portal.clock.now()).await {
        Ok(true) => {}
        Ok(false) => return response,
        Err(error) => {
            tracing::warn!(%error, "saving the text of an ended session failed");
            return response;
        }
    }
    match response.extensions_mut().remove::<ErrorPage>() {
        Some(page) => text_stored(page, client, fields.form).into_response(),
        // A script asked.
        None => {
            let reason = "You are signed out. Your text is stored, and comes back when you sign in.";
            let body = json!({"error": {"code": "text_stored", "reason": reason}}).to_string();
            let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (StatusCode::UNAUTHORIZED, json, body).into_response()
        }
    }
}

fn other_person() -> ErrorPage {
    ErrorPage::new(
        StatusCode::CONFLICT,
        "other_person",
        "Someone else is signed in",
        "Someone else has signed in in this browser since this form was opened. Nothing was saved.",
    )
    .advice("Sign out, then sign in as the person who opened the form.")
}

fn text_stored(mut page: ErrorPage, client: ClientId, form: UnsavedForm) -> ErrorPage {
    page.reason = "Your session ended before this was saved. Your text is stored.".to_owned();
    page.advice = "Sign in again. Your text will be back in the form.".to_owned();
    page.text_hint = "You do not need to copy it.";
    match LocalPath::parse(&form_href(client, form)) {
        Some(path) => page.next_link(sign_in_url(&path), "Sign in"),
        None => page,
    }
}

/// URL of the record with this form open.
pub(super) fn form_href(client: ClientId, form: UnsavedForm) -> String {
    let open = match form {
        UnsavedForm::Details => RequestedForm::Details,
        UnsavedForm::NewEntry(kind) => RequestedForm::NewEntry(kind),
        UnsavedForm::Entry(entry) => RequestedForm::Entry(entry),
    };
    RecordQuery { open: Some(open), ..RecordQuery::default() }.href(client)
}
