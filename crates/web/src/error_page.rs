//! Error pages with one structure: what happened, what to do, and a link to continue. Text for the user and detail for the log are
//! separate. Each surface maps its errors to pages in its `error.rs`.

use crate::preserved_text::PreservedText;
use crate::problems::Problems;
use askama::Template;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use std::ops::{Deref, DerefMut};

/// A failed request. The boundary, which knows the firm's name, renders it as a page, or as JSON if the caller asked for that.
#[derive(Clone, Debug)]
pub struct ErrorPage(Box<ErrorMessage>);

/// Content of an error page. Only `internal` is hidden from the user.
#[derive(Clone, Debug)]
pub struct ErrorMessage {
    pub status: StatusCode,
    /// Machine-readable code.
    pub code: &'static str,
    pub title: &'static str,
    /// What happened.
    pub reason: String,
    /// What to do next.
    pub advice: String,
    /// Defaults to the home page, so that no error page is a dead end.
    pub next_link: Option<Link>,
    /// For users who cannot use the first link.
    pub other_link: Option<Link>,
    pub retry_after_s: Option<u32>,
    /// For the log only.
    pub internal: Option<String>,
    /// Expired cookies to delete: `Set-Cookie` values.
    pub cookies: Vec<HeaderValue>,
    /// What to do with the typed text that the page shows.
    pub text_hint: &'static str,
    /// False if what was typed is saved already, so that the page does not call it unsaved.
    pub shows_typed_text: bool,
    /// The form that goes on with the change, if it only needs to be confirmed.
    pub confirmation: Option<Confirmation>,
}

/// A change that waits to be confirmed.
#[derive(Clone, Debug)]
pub struct Confirmation {
    /// What would change, one by one.
    pub changes: Vec<String>,
    /// How many things would change: the value of `confirmed` that goes on.
    pub count: u64,
    /// Path of the form.
    pub action: &'static str,
    /// Hidden fields of the form, to which `confirmed` is added.
    pub fields: Vec<(&'static str, String)>,
    /// Text of its button.
    pub button: String,
}

/// The form field `confirmed`: how many things the caller agreed to change.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Confirmed(Option<String>);

impl Confirmed {
    pub fn is(&self, count: u64) -> bool {
        self.0.as_ref().is_some_and(|confirmed| *confirmed == count.to_string())
    }
}

#[derive(Clone, Debug)]
pub struct Link {
    pub href: String,
    pub label: &'static str,
}

impl Deref for ErrorPage {
    type Target = ErrorMessage;

    fn deref(&self) -> &ErrorMessage {
        &self.0
    }
}

impl DerefMut for ErrorPage {
    fn deref_mut(&mut self) -> &mut ErrorMessage {
        &mut self.0
    }
}

impl ErrorPage {
    pub fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        reason: impl Into<String>,
    ) -> Self {
        Self(Box::new(ErrorMessage {
            status,
            code,
            title,
            reason: reason.into(),
            advice: String::new(),
            next_link: Some(Link { href: "/".to_owned(), label: "Go to the home page" }),
            other_link: None,
            retry_after_s: None,
            internal: None,
            cookies: Vec::new(),
            text_hint: "Copy it before you leave this page.",
            shows_typed_text: true,
            confirmation: None,
        }))
    }

    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    #[must_use]
    pub fn next_link(mut self, href: impl Into<String>, label: &'static str) -> Self {
        self.next_link = Some(Link { href: href.into(), label });
        self
    }

    #[must_use]
    pub fn other_link(mut self, href: Option<String>, label: &'static str) -> Self {
        self.other_link = href.map(|href| Link { href, label });
        self
    }

    #[must_use]
    pub fn without_typed_text(mut self) -> Self {
        self.shows_typed_text = false;
        self
    }

    #[must_use]
    pub fn with_log_detail(mut self, internal: impl Into<String>) -> Self {
        self.internal = Some(internal.into());
        self
    }

    #[must_use]
    pub fn with_cookie(mut self, cookie: Option<HeaderValue>) -> Self {
        self.cookies.extend(cookie);
        self
    }

    pub fn internal(internal: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_error",
            "Something went wrong",
            "The error is on our side.",
        )
        .advice("If you were saving, check whether it was saved, then try again. If it fails again, contact your administrator with the time of the error.")
        .with_log_detail(internal)
    }

    /// The database or another dependency does not respond.
    pub fn unavailable(internal: impl Into<String>) -> Self {
        let mut error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Temporarily unavailable",
            "A service that we depend on is not responding.",
        )
        .advice("Try again in a minute. If you were saving, check first whether it was saved.")
        .with_log_detail(internal);
        error.retry_after_s = Some(30);
        error
    }

    pub fn not_found() -> Self {
        Self::missing("Page not found", "There is no page at this address.")
            .advice("Check the address. If you followed a link, it may be out of date.")
    }

    /// The URL names something that does not exist.
    pub fn missing(title: &'static str, reason: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", title, reason)
    }

    /// The request conflicts with the current state.
    pub fn conflict(code: &'static str, title: &'static str, reason: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, title, reason)
    }

    /// Asks before a change that is hard to take back. `reason` introduces the list of changes.
    pub fn confirmation(
        title: &'static str,
        reason: impl Into<String>,
        confirmed: &Confirmed,
        confirmation: Confirmation,
    ) -> Self {
        let mut reason = reason.into();
        if confirmed.0.is_some() {
            reason.insert_str(0, "This has changed since you confirmed it. ");
        }
        let mut page = Self::conflict("confirmation_required", title, reason).without_typed_text();
        page.confirmation = Some(confirmation);
        page
    }

    /// A query parameter that none of our links contain.
    pub fn invalid_parameter(name: &str, why: &str) -> Self {
        let (status, reason) = (StatusCode::BAD_REQUEST, format!("`{name}` {why}."));
        Self::new(status, "bad_request", "Invalid link", reason)
            .advice("Check the address. If you followed a link, it may be out of date.")
    }

    /// Invalid values from programs and files, where no form can be shown again. `None` if there are no problems.
    pub fn invalid_input(title: &'static str, problems: &Problems) -> Option<Self> {
        let (status, reason) = (StatusCode::UNPROCESSABLE_ENTITY, problems.joined());
        problems.any().then(|| Self::new(status, "invalid_value", title, reason))
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "Method not allowed",
            "This page does not accept this kind of request.",
        )
    }

    pub fn invalid_form(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", "Invalid request", reason)
            .advice("Go back, reload the page and try again.")
    }

    pub fn cross_origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "cross_origin",
            "Request from another site blocked",
            "Another site sent this request in your name. Nothing was changed.",
        )
        .advice("To do this, use the form on this site.")
    }

    pub fn too_many_requests(reason: impl Into<String>, retry_after_s: u32) -> Self {
        let mut error =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", "Too many requests", reason);
        error.retry_after_s = Some(retry_after_s);
        error
    }

    pub(crate) fn to_json(&self) -> Response {
        let mut error = json!({"code": self.code, "reason": self.reason});
        if let Some(Confirmation { changes, count, .. }) = &self.confirmation {
            error["reason"] = format!("{} {}", self.reason, changes.join(", ")).trim_end().into();
            error["count"] = (*count).into();
        }
        let body = json!({"error": error}).to_string();
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        self.with_status_and_headers((json, body).into_response())
    }

    /// Renders the page, including the text that the user typed.
    pub(crate) fn to_page(&self, firm_name: &str, bar: Option<&str>, typed: &[PreservedText]) -> Response {
        let page = ErrorTemplate {
            firm_name,
            bar,
            status: self.status.as_u16(),
            title: self.title,
            reason: &self.reason,
            advice: &self.advice,
            next_link: self.next_link.as_ref(),
            other_link: self.other_link.as_ref(),
            text_hint: self.text_hint,
            typed,
            confirmation: self.confirmation.as_ref(),
        };
        self.with_status_and_headers(match page.render() {
            Ok(html) => axum::response::Html(html).into_response(),
            Err(_) => self.reason.clone().into_response(),
        })
    }

    fn with_status_and_headers(&self, mut response: Response) -> Response {
        *response.status_mut() = self.status;
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        for cookie in &self.cookies {
            response.headers_mut().append(header::SET_COOKIE, cookie.clone());
        }
        response
    }
}

/// Only attaches the error; the boundary renders the reply.
impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Whether the caller accepts JSON but not HTML. Browsers always list `text/html`.
pub fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("application/json") && !accept.contains("text/html")
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorTemplate<'a> {
    firm_name: &'a str,
    bar: Option<&'a str>,
    status: u16,
    title: &'a str,
    reason: &'a str,
    advice: &'a str,
    next_link: Option<&'a Link>,
    other_link: Option<&'a Link>,
    text_hint: &'a str,
    typed: &'a [PreservedText],
    confirmation: Option<&'a Confirmation>,
}
