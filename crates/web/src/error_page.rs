//! Error pages in one voice: what happened, what to do, and one link to go on. What the reader sees and what the log says are
//! apart. Which error becomes which page, each surface says in its `error.rs`.

use crate::problems::Problems;
use crate::typed::Typed;
use askama::Template;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::ops::{Deref, DerefMut};

/// A request that failed. It becomes a page, or JSON for whoever asked for that, at the boundary, which knows the firm's name.
#[derive(Clone, Debug)]
pub struct ErrorPage(Box<ErrorMessage>);

/// What an error page says. `internal` is the only part that no reader sees.
#[derive(Clone, Debug)]
pub struct ErrorMessage {
    pub status: StatusCode,
    /// For programs.
    pub code: &'static str,
    /// The page's heading.
    pub title: &'static str,
    /// What happened.
    pub reason: String,
    /// What to do.
    pub advice: String,
    /// The start, unless there is a better one: no page is a dead end.
    pub next_link: Option<Link>,
    /// For whom the first is of no use.
    pub other_link: Option<Link>,
    pub retry_after_s: Option<u32>,
    /// For the log alone.
    pub internal: Option<String>,
    /// Cookies that are no good any more.
    pub cookies: Vec<HeaderValue>,
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
            next_link: Some(Link { href: "/".to_owned(), label: "Go to the start" }),
            other_link: None,
            retry_after_s: None,
            internal: None,
            cookies: Vec::new(),
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
    pub fn logged(mut self, internal: impl Into<String>) -> Self {
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
            "Something went wrong on our side",
            "Nothing that you did caused it.",
        )
        .advice("Try again in a moment; if you were saving something, look first whether it is there. If it stays, tell the firm's administrator when it happened.")
        .logged(internal)
    }

    /// The database, or another part that we stand on, does not answer.
    pub fn unavailable(internal: impl Into<String>) -> Self {
        let mut error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "This is not available right now",
            "A part that we need does not answer.",
        )
        .advice("Try again in a minute. If you were saving something, look first whether it is there.")
        .logged(internal);
        error.retry_after_s = Some(30);
        error
    }

    pub fn not_found() -> Self {
        Self::missing("There is no such page", "Nothing is at this address.")
            .advice("If you typed it, check it; if a link led here, it is out of date.")
    }

    /// What the address names is not there.
    pub fn missing(title: &'static str, reason: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", title, reason)
    }

    /// What was asked for does not fit the state that something is in.
    pub fn conflict(code: &'static str, title: &'static str, reason: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, title, reason)
    }

    /// Something in an address that no link of ours has.
    pub fn bad_parameter(name: &str, why: &str) -> Self {
        let (status, reason) = (StatusCode::BAD_REQUEST, format!("`{name}` {why}."));
        Self::new(status, "bad_request", "This address cannot be read", reason)
            .advice("If you typed it, check it; if a link led here, it is out of date.")
    }

    /// Values that cannot be read, for programs and files, where no form can be shown again. None: all can.
    pub fn invalid_values(title: &'static str, problems: &Problems) -> Option<Self> {
        let (status, reason) = (StatusCode::UNPROCESSABLE_ENTITY, problems.in_words());
        problems.any().then(|| Self::new(status, "invalid_value", title, reason))
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "This cannot be done here",
            "This address does not take this kind of request.",
        )
    }

    pub fn bad_form(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", "This request cannot be read", reason)
            .advice("Go back and send the form again.")
    }

    pub fn cross_origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "cross_origin",
            "This came from another site",
            "Another site sent this request in your name. It was stopped, and nothing was changed.",
        )
        .advice("If you meant to do this, open the page here and do it from there.")
    }

    pub fn too_many(reason: impl Into<String>, retry_after_s: u32) -> Self {
        let mut error =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", "Wait a moment", reason);
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// As a program gets it.
    pub(crate) fn to_json(&self) -> Response {
        let body = json!({"error": {"code": self.code, "reason": self.reason}}).to_string();
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        self.sent_with((json, body).into_response())
    }

    /// As a reader gets it, with what they typed.
    pub(crate) fn to_page(&self, firm_name: &str, bar: Option<&str>, typed: &[Typed]) -> Response {
        let page = ErrorTemplate {
            firm_name,
            bar,
            status: self.status.as_u16(),
            title: self.title,
            reason: &self.reason,
            advice: &self.advice,
            next_link: self.next_link.as_ref(),
            other_link: self.other_link.as_ref(),
            typed,
        };
        self.sent_with(match page.render() {
            Ok(html) => axum::response::Html(html).into_response(),
            Err(_) => self.reason.clone().into_response(),
        })
    }

    fn sent_with(&self, mut response: Response) -> Response {
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

/// The boundary makes the reply; this only hands the error over.
impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Whether JSON is asked for and a page is not: browsers ask for pages by name.
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
    typed: &'a [Typed],
}
