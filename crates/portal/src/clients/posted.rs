//! A form that was sent. What no form of ours would send is refused as a whole.

use axum::Form;
use axum::extract::{FromRequest, Request};
use chancery_web::Refusal;
use serde::de::DeserializeOwned;

pub(crate) struct Posted<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Posted<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let form = Form::from_request(request, state).await;
        let Form(fields) =
            form.map_err(|error| Refusal::bad_form("The form cannot be read.").logged(error.to_string()))?;
        Ok(Self(fields))
    }
}
