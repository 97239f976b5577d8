//! `/auth/code`: the page that asks for the six-digit code from the email. The reply that accepts it starts the session.

use crate::error::PageError;
use crate::sign_in::admission::{AdmittedIdentity, begin_session};
use crate::sign_in::authentication::Authentication;
use crate::sign_in::emails;
use crate::sign_in::links::someone_else_url;
use crate::sign_in::pending_email_code::{self, CODE_COOKIE, CODE_TTL};
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::time_format::clock_text;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{EmailCode, SecretToken};
use chancery_store::{CodeOutcome, PendingEmailCode};
use chancery_web::{ErrorPage, PostedForm, page};
use std::sync::Arc;
use std::time::Duration;

/// How long the email about a lockout is sent again while the mail server does not accept it.
const LOCKOUT_EMAIL_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer input is truncated when the form is shown again.
const MAX_TYPED_CHARS: usize = 20;

#[derive(Template)]
#[template(path = "sign_in/email_code.html")]
pub(crate) struct CodePage<'a> {
    firm_name: &'a str,
    email: (&'a str, &'a str),
    /// `None` if the email could not be sent.
    sent_at: Option<String>,
    is_resent: bool,
    valid_min: u64,
    typed: &'a str,
    error: Option<String>,
    notice: Option<String>,
    someone_else: String,
    /// In a demo, where its email can be read.
    mail_page_url: Option<&'a str>,
}

impl<'a> CodePage<'a> {
    pub(crate) fn new(portal: &'a Portal, pending: &'a PendingEmailCode) -> Self {
        Self {
            firm_name: &portal.settings.firm_name,
            email: pending.email.as_str().split_once('@').unwrap_or((pending.email.as_str(), "")),
            sent_at: pending.is_email_sent.then(|| clock_text(pending.code.sent_at)),
            is_resent: pending.code.sent > 1,
            valid_min: CODE_TTL.as_secs() / 60,
            typed: "",
            error: None,
            notice: None,
            someone_else: someone_else_url(&pending.return_to),
            mail_page_url: portal.mailer.mail_page_url(),
        }
    }

    /// A message about the email, above the form.
    pub(crate) fn notice(mut self, notice: String) -> Self {
        self.notice = Some(notice);
        self
    }

    fn error(mut self, typed: &'a str, error: String) -> Self {
        let end = typed.char_indices().nth(MAX_TYPED_CHARS).map_or(typed.len(), |(at, _)| at);
        self.typed = &typed[..end];
        self.error = Some(error);
        self
    }
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let (_, pending) = pending_email_code::from_browser(&portal, &headers).await?;
    Ok(page(StatusCode::OK, &CodePage::new(&portal, &pending))?)
}

#[derive(serde::Deserialize)]
pub(crate) struct CodeForm {
    #[serde(default)]
    code: String,
}

pub(crate) async fn submit(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
    form: Result<PostedForm<CodeForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let PostedForm(CodeForm { code: typed }) =
        form.map_err(|_| ErrorPage::invalid_form("The form was incomplete."))?;
    let (token, pending) = pending_email_code::from_browser(&portal, &headers).await?;
    let Some(code) = EmailCode::parse(&typed) else {
        let error = "Enter the six-digit code from your latest email.".to_owned();
        return Ok(page(
            StatusCode::UNPROCESSABLE_ENTITY,
            &CodePage::new(&portal, &pending).error(&typed, error),
        )?);
    };
    match verify_code(&portal, &token, &code, &visitor).await? {
        CodeOutcome::Accepted(accepted) => {
            let admitted = AdmittedIdentity {
                identity: accepted.identity,
                email: accepted.email,
                is_email_verified: accepted.is_email_verified,
                directory_role: accepted.directory_role,
                authentication: Authentication::open(accepted.authentication, &token),
                return_to: accepted.return_to,
            };
            let started = begin_session(&portal, admitted, &visitor, CODE_COOKIE.expire()).await;
            started.map_err(|mut error| {
                error.cookies.extend(CODE_COOKIE.expire());
                error
            })
        }
        CodeOutcome::Rejected { left } => {
            let attempts = if left == 1 { "1 attempt".to_owned() } else { format!("{left} attempts") };
            let error = format!("Incorrect code. Check your latest email and try again. {attempts} left.");
            Ok(page(
                StatusCode::UNPROCESSABLE_ENTITY,
                &CodePage::new(&portal, &pending).error(&typed, error),
            )?)
        }
        CodeOutcome::LockedOut { .. } => Err(pending_email_code::locked_out_page().into()),
        CodeOutcome::Gone => Err(pending_email_code::expired_page().into()),
    }
}

/// Verifies the code and, if that locks the account, emails its owner. Each runs in its own task, so that an attacker cannot
/// cancel it by disconnecting. The response does not wait for the email.
async fn verify_code(
    portal: &Arc<Portal>,
    token: &SecretToken,
    code: &EmailCode,
    visitor: &Visitor,
) -> Result<CodeOutcome, PageError> {
    let (token, typed) = (token.hash(), token.hash_with(code.reveal()));
    let (portal, visitor) = (Arc::clone(portal), visitor.clone());
    let outcome = tokio::spawn(async move {
        let outcome =
            portal.store.sign_ins.verify_code(token, typed, &visitor.origin(portal.clock.now())).await;
        if let Ok(CodeOutcome::LockedOut { pending, is_first: true }) = &outcome {
            let pending = pending.clone();
            tokio::spawn(async move { email_lockout(&portal, &pending, &visitor).await });
        }
        outcome
    });
    Ok(outcome.await??)
}

/// Called once per lockout. The email goes to the outbox; the lockout applies in any case.
async fn email_lockout(portal: &Portal, pending: &PendingEmailCode, visitor: &Visitor) {
    let message = emails::lockout(&pending.email, &portal.settings.identity.host(), visitor);
    let expires_at = portal.clock.now().after(LOCKOUT_EMAIL_TTL);
    if let Err(error) = portal.mailer.enqueue(&message, expires_at).await {
        tracing::error!(%error, "lockout email not sent, storing it failed");
    }
}
