//! What can go wrong with the identity provider: what the person reads and what the log reads are apart. Nothing here ever
//! holds a code, a token or a secret.

use crate::sign_in::links::{SIGN_IN_AGAIN, sign_in_url};
use axum::http::StatusCode;
use chancery_domain::LocalPath;
use chancery_web::ErrorPage;

/// The texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the identity provider cannot be reached: {0}")]
    Down(String),
    #[error("the identity provider took too long: {0}")]
    Slow(String),
    #[error("the identity provider's answer is refused: {0}")]
    Lying(String),
    #[error("the identity provider does not accept the portal: {0}")]
    RefusesPortal(String),
    #[error("the identity provider does not know the code: {0}")]
    CodeIsOver(String),
}

impl Fault {
    /// `return_to` is where the person was going, and goes when they try again.
    pub(crate) fn error_page(&self, return_to: &LocalPath) -> ErrorPage {
        let page = match self {
            Self::Down(_) => {
                let mut page = ErrorPage::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "identity_provider_down",
                    "The sign-in service cannot be reached",
                    "The service that the firm signs in with does not answer. Nothing is wrong with your account.",
                )
                .advice("Try again in a minute. If it stays like this, tell the firm's administrator.");
                page.retry_after_s = Some(30);
                page
            }
            Self::Slow(_) => ErrorPage::new(
                StatusCode::GATEWAY_TIMEOUT,
                "identity_provider_slow",
                "The sign-in service takes too long",
                "The service that the firm signs in with did not answer in time. Nothing is wrong with your account.",
            )
            .advice("Try again in a minute. If it stays like this, tell the firm's administrator."),
            Self::Lying(_) => ErrorPage::new(
                StatusCode::BAD_GATEWAY,
                "identity_provider_not_trusted",
                "The sign-in service's answer cannot be trusted",
                "What it said did not pass the portal's checks, so you were not signed in.",
            )
            .advice("Try once more. If it stays like this, tell the firm's administrator: the portal's log says what was wrong."),
            Self::RefusesPortal(_) => ErrorPage::new(
                StatusCode::BAD_GATEWAY,
                "identity_provider_refuses_portal",
                "The sign-in service does not accept this portal",
                "It refused to answer the portal, so you were not signed in. Nothing is wrong with your account.",
            )
            .advice(
                "Tell the firm's administrator: the portal's registration at the sign-in service needs correcting, and \
                 the portal's log says what it refused.",
            ),
            Self::CodeIsOver(_) => ErrorPage::new(
                StatusCode::GONE,
                "sign_in_over",
                "This sign-in is over",
                "It took too long, or it was finished before. You were not signed in by it.",
            )
            .advice("Begin again; it takes a moment."),
        };
        page.next_link(sign_in_url(return_to), SIGN_IN_AGAIN).logged(self.to_string())
    }
}
