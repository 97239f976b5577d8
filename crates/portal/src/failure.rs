//! What a page says when the store refuses.

use crate::authz::authority::no_such_client;
use axum::http::StatusCode;
use chancery_store::StoreError;
use chancery_web::Refusal;

pub(crate) fn refused_by_store(error: &StoreError) -> Refusal {
    match error {
        StoreError::PersonRemoved(_) | StoreError::NoSuchPerson(_) => Refusal::new(
            StatusCode::FORBIDDEN,
            "person_removed",
            "You are no longer in this portal",
            "The firm has taken you out of its client portal, so you cannot sign in.",
        )
        .advice("If that is a mistake, ask the firm's administrator, who can let you in again.")
        .way_on("/auth/sign-in?as=someone-else", "Sign in as someone else")
        .logged(error.to_string()),
        StoreError::NoSuchClient(_) => no_such_client(),
        StoreError::Unavailable(_) | StoreError::DiskFull(_) | StoreError::ReadOnly(_) => {
            Refusal::unavailable(error.to_string())
        }
        _ => Refusal::internal(error.to_string()),
    }
}
