//! Errors of the identity provider, with separate text for the user and for the log. They never contain a code, a token or a
//! secret.

use crate::sign_in::links::{SIGN_IN_AGAIN, sign_in_url};
use axum::http::StatusCode;
use chancery_domain::LocalPath;
use chancery_web::ErrorPage;

/// The messages are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdentityProviderError {
    #[error("identity provider unavailable: {0}")]
    Unavailable(String),
    #[error("identity provider timed out: {0}")]
    TimedOut(String),
    #[error("identity provider response rejected: {0}")]
    InvalidResponse(String),
    #[error("identity provider rejected the portal: {0}")]
    ClientRejected(String),
    #[error("authorization code rejected: {0}")]
    CodeExpired(String),
}

impl IdentityProviderError {
    /// `return_to` is the page that the user requested, and gets after trying again.
    pub(crate) fn error_page(&self, return_to: &LocalPath) -> ErrorPage {
        let page = match self {
            Self::Unavailable(_) => {
                let mut page = ErrorPage::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "identity_provider_down",
                    "Sign-in service unavailable",
                    "The sign-in service is not responding. Your account is fine.",
                )
                .advice("Try again in a minute. If it fails again, contact your administrator.");
                page.retry_after_s = Some(30);
                page
            }
            Self::TimedOut(_) => ErrorPage::new(
                StatusCode::GATEWAY_TIMEOUT,
                "identity_provider_slow",
                "Sign-in service timed out",
                "The sign-in service did not respond in time. Your account is fine.",
            )
            .advice("Try again in a minute. If it fails again, contact your administrator."),
            Self::InvalidResponse(_) => ErrorPage::new(
                StatusCode::BAD_GATEWAY,
                "identity_provider_not_trusted",
                "Sign-in response rejected",
                "The sign-in service sent a response that failed a security check. You were not signed in.",
            )
            .advice("Try again. If it fails again, contact your administrator. Details are in the portal’s log."),
            Self::ClientRejected(_) => ErrorPage::new(
                StatusCode::BAD_GATEWAY,
                "identity_provider_refuses_portal",
                "Portal not registered",
                "The sign-in service rejected the portal, so you were not signed in. Your account is fine.",
            )
            .advice(
                "Contact your administrator. The portal’s registration at the sign-in service must be corrected. Details are in the portal’s log.",
            ),
            Self::CodeExpired(_) => ErrorPage::new(
                StatusCode::GONE,
                "sign_in_over",
                "Sign-in expired",
                "It took too long or was already used.",
            )
            .advice("Sign in again."),
        };
        page.next_link(sign_in_url(return_to), SIGN_IN_AGAIN).with_log_detail(self.to_string())
    }
}
