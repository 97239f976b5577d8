//! `POST /auth/code/resend`: a new code in a new letter, within bounds.

use crate::error::PageError;
use crate::sign_in::email_code::CodePage;
use crate::sign_in::pending_email_code::{self, Delivery};
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::when::{clock_time, seconds_until};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{MailCode, UnixMillis};
use chancery_store::{CodeSending, MAX_CODES_PER_SIGN_IN};
use chancery_web::page;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let (token, half) = pending_email_code::of_browser(&portal, &headers).await?;
    let code = MailCode::generate(portal.randomness.as_ref());
    let now = portal.clock.now();
    let mut response = match portal.store.sign_ins.may_send_code(token.hash(), now).await? {
        CodeSending::Yes => {
            match pending_email_code::post(&portal, &half.email, &token, &code, &visitor).await? {
                Delivery::Accepted => Redirect::to("/auth/code").into_response(),
                Delivery::Failed => {
                    let (_, half) = pending_email_code::of_browser(&portal, &headers).await?;
                    let mut shown = CodePage::new(&portal, &half);
                    if half.is_code_sent {
                        let notice = "The mail server did not take the new letter. The code in the last one still works.";
                        shown = shown.notice(notice.to_owned());
                    }
                    page(StatusCode::SERVICE_UNAVAILABLE, &shown)?
                }
            }
        }
        CodeSending::NotBefore(at) => {
            let wait = in_words(at, now);
            let notice =
                format!("The last letter was sent, or tried, a moment ago. A new one can be sent in {wait}.");
            later(&CodePage::new(&portal, &half).notice(notice), seconds_until(at, now))?
        }
        CodeSending::TooMany { until } => {
            let notice = format!(
                "Very many codes were sent to your mailbox and none of them was used. The next one can be sent after {}; the \
                 newest that you have still works.",
                clock_time(until)
            );
            later(&CodePage::new(&portal, &half).notice(notice), seconds_until(until, now))?
        }
        CodeSending::NoMore => {
            let notice = format!(
                "{MAX_CODES_PER_SIGN_IN} letters were sent for this sign-in, and no more will be. Use the newest code, or \
                 sign in again."
            );
            page(StatusCode::TOO_MANY_REQUESTS, &CodePage::new(&portal, &half).notice(notice))?
        }
        CodeSending::NoTriesLeft { until } => {
            return Err(pending_email_code::no_tries_left(until, now).into());
        }
        CodeSending::Gone => return Err(pending_email_code::over().into()),
    };
    // The new code lasts longer than the cookie would.
    response.headers_mut().append(header::SET_COOKIE, pending_email_code::cookie(&token)?);
    Ok(response)
}

/// The page again, for a browser that came too early.
fn later(shown: &CodePage<'_>, retry_after_s: u32) -> Result<Response, PageError> {
    let mut response = page(StatusCode::TOO_MANY_REQUESTS, shown)?;
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s));
    Ok(response)
}

fn in_words(at: UnixMillis, now: UnixMillis) -> String {
    match seconds_until(at, now) {
        1 => "1 second".to_owned(),
        seconds if seconds < 120 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}
