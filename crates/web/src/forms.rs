//! Form handling: `PostedForm` is the submitted form, the feature's own type parses it and reports problems by field, and `Form` is what
//! the page shows again, with everything the user typed.

use crate::error_page::ErrorPage;
use crate::problems::Problems;
use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

/// A submitted form. A body that none of our forms would send is rejected as a whole. A request without a body is a form
/// without fields.
pub struct PostedForm<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for PostedForm<T> {
    type Rejection = ErrorPage;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, ErrorPage> {
        if request.body().is_end_stream() && !request.headers().contains_key(CONTENT_TYPE) {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            request.headers_mut().insert(CONTENT_TYPE, form);
        }
        match axum::Form::from_request(request, state).await {
            Ok(axum::Form(fields)) => Ok(Self(fields)),
            Err(error) => {
                Err(ErrorPage::invalid_form("The form is not valid.").with_log_detail(error.to_string()))
            }
        }
    }
}

/// A form as shown on a page: the typed values and their problems.
#[derive(Clone, Debug, Default)]
pub struct Form<T> {
    pub typed: T,
    pub problems: Problems,
}

impl<T> Form<T> {
    pub fn of(typed: T) -> Self {
        Self { typed, problems: Problems::default() }
    }
}

/// An option of a `<select>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub value: String,
    pub label: String,
    pub is_selected: bool,
}

impl Choice {
    pub fn new(value: impl Into<String>, label: impl Into<String>, is_selected: bool) -> Self {
        Self { value: value.into(), label: label.into(), is_selected }
    }
}

/// Splits an email address after the `@`, where a line may break.
pub fn split_email(email: &str) -> (&str, &str) {
    email.split_at(email.find('@').map_or(0, |at| at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[tokio::test]
    async fn request_without_a_body_is_a_form_without_fields() {
        let empty = Request::post("/").body(Body::empty()).unwrap();
        let read = PostedForm::<Vec<(String, String)>>::from_request(empty, &()).await;
        assert_eq!(read.map(|PostedForm(fields)| fields.len()).ok(), Some(0));
        let text = Request::post("/").body(Body::from("name=Calder")).unwrap();
        assert!(PostedForm::<Vec<(String, String)>>::from_request(text, &()).await.is_err());
    }
}
