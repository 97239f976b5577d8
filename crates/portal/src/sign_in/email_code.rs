//! `/auth/code`: the page that asks for the six digits from the letter. The session begins with the reply that accepts them.

use crate::error::PageError;
use crate::sign_in::admission::{Claimant, begin_session};
use crate::sign_in::emails;
use crate::sign_in::links::someone_else_url;
use crate::sign_in::pending_email_code::{self, CODE_COOKIE, CODE_LASTS};
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::when::clock_time;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{MailCode, SecretToken};
use chancery_store::{CodeTry, HalfSignIn};
use chancery_web::{ErrorPage, Posted, page};
use std::sync::Arc;

/// More than anybody types; the rest is not shown again.
const MAX_TYPED_CHARS: usize = 20;

#[derive(Template)]
#[template(path = "sign_in/email_code.html")]
pub(crate) struct CodePage<'a> {
    firm_name: &'a str,
    email: (&'a str, &'a str),
    /// None where the letter could not be sent.
    sent_at: Option<String>,
    is_resent: bool,
    lasts_min: u64,
    typed: &'a str,
    error: Option<String>,
    notice: Option<String>,
    someone_else: String,
}

impl<'a> CodePage<'a> {
    pub(crate) fn new(portal: &'a Portal, half: &'a HalfSignIn) -> Self {
        Self {
            firm_name: &portal.settings.firm_name,
            email: half.email.as_str().split_once('@').unwrap_or((half.email.as_str(), "")),
            sent_at: half.is_code_sent.then(|| clock_time(half.code.sent_at)),
            is_resent: half.code.sent > 1,
            lasts_min: CODE_LASTS.as_secs() / 60,
            typed: "",
            error: None,
            notice: None,
            someone_else: someone_else_url(&half.return_to),
        }
    }

    /// Something about the letters, above the form.
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
    let (_, half) = pending_email_code::of_browser(&portal, &headers).await?;
    Ok(page(StatusCode::OK, &CodePage::new(&portal, &half))?)
}

#[derive(serde::Deserialize)]
pub(crate) struct Typed {
    #[serde(default)]
    code: String,
}

pub(crate) async fn submit(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
    form: Result<Posted<Typed>, ErrorPage>,
) -> Result<Response, PageError> {
    let Posted(Typed { code: typed }) =
        form.map_err(|_| ErrorPage::bad_form("The form was not sent whole."))?;
    let (token, half) = pending_email_code::of_browser(&portal, &headers).await?;
    let Some(code) = MailCode::parse(&typed) else {
        let error = "Type the six digits from the newest letter.".to_owned();
        return Ok(page(
            StatusCode::UNPROCESSABLE_ENTITY,
            &CodePage::new(&portal, &half).error(&typed, error),
        )?);
    };
    match try_code(&portal, &token, &code, &visitor).await? {
        CodeTry::Right(HalfSignIn { identity, email, return_to, .. }) => {
            let claimant = Claimant { identity, email, return_to };
            let begun = begin_session(&portal, claimant, &visitor, CODE_COOKIE.take_back()).await;
            begun.map_err(|mut error| {
                error.cookies.extend(CODE_COOKIE.take_back());
                error
            })
        }
        CodeTry::Wrong { left } => {
            let tries = if left == 1 { "1 try".to_owned() } else { format!("{left} tries") };
            let error = format!(
                "That code is not right. Check the newest letter and try again; you have {tries} left."
            );
            Ok(page(StatusCode::UNPROCESSABLE_ENTITY, &CodePage::new(&portal, &half).error(&typed, error))?)
        }
        CodeTry::Destroyed { .. } => Err(pending_email_code::destroyed().into()),
        CodeTry::Gone => Err(pending_email_code::over().into()),
    }
}

/// The try, and the letter that tells the owner if it was the last one. Both are a task of their own: a guesser who hangs up
/// ends the request, and must not end these with it. Nobody waits for the letter.
async fn try_code(
    portal: &Arc<Portal>,
    token: &SecretToken,
    code: &MailCode,
    visitor: &Visitor,
) -> Result<CodeTry, PageError> {
    let (token, typed) = (token.hash(), token.hash_with(code.reveal()));
    let (portal, visitor) = (Arc::clone(portal), visitor.clone());
    let tried = tokio::spawn(async move {
        let tried = portal.store.sign_ins.try_code(token, typed, &visitor.origin(portal.clock.now())).await;
        if let Ok(CodeTry::Destroyed { half, is_news: true }) = &tried {
            let half = half.clone();
            tokio::spawn(async move { tell_of_lockout(&portal, &half, &visitor).await });
        }
        tried
    });
    Ok(tried.await??)
}

/// Once for each lockout. Where the letter does not go out, the log has it: the lockout stands all the same.
async fn tell_of_lockout(portal: &Portal, half: &HalfSignIn, visitor: &Visitor) {
    let letter = emails::lockout(&half.email, &portal.settings.identity.host(), visitor);
    if let Err(error) = portal.mailer.send(&letter).await {
        tracing::error!(%error, "the owner of an account could not be told of a lockout");
    }
}
