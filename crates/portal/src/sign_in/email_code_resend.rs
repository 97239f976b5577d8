//! `POST /auth/code/resend`: sends a new code in a new email, within limits.

use crate::error::PageError;
use crate::sign_in::email_code::CodePage;
use crate::sign_in::pending_email_code::{self, Delivery};
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::time_format::{clock_text, seconds_until, utc_text};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailCode, MAX_CODE_EMAILS_PER_SIGN_IN, UnixMillis};
use chancery_store::CodeEmailOutcome;
use chancery_web::page;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let (token, pending) = pending_email_code::from_browser(&portal, &headers).await?;
    let code = EmailCode::generate(portal.randomness.as_ref());
    let now = portal.clock.now();
    let mut response = match portal.store.sign_ins.count_code_email(token.hash(), now).await? {
        CodeEmailOutcome::Allowed => {
            match pending_email_code::send_code(&portal, &pending.email, &token, &code, &visitor).await? {
                Delivery::Accepted => Redirect::to("/auth/code").into_response(),
                Delivery::Failed => {
                    let (_, pending) = pending_email_code::from_browser(&portal, &headers).await?;
                    let mut shown = CodePage::new(&portal, &pending);
                    if pending.is_email_sent {
                        let notice = "The new code could not be sent. The latest code still works.";
                        shown = shown.notice(notice.to_owned());
                    }
                    page(StatusCode::SERVICE_UNAVAILABLE, &shown)?
                }
            }
        }
        CodeEmailOutcome::TooSoon(at) => {
            let wait = wait_text(at, now);
            let notice = format!("A code was sent a moment ago. You can request a new one in {wait}.");
            too_early(&CodePage::new(&portal, &pending).notice(notice), seconds_until(at, now))?
        }
        CodeEmailOutcome::TooMany { until } => {
            let notice = format!(
                "Too many unused codes were sent to you. You can request a new one after {}. The latest code still works.",
                clock_text(until)
            );
            too_early(&CodePage::new(&portal, &pending).notice(notice), seconds_until(until, now))?
        }
        CodeEmailOutcome::TooManyToday { until } => {
            let notice = format!(
                "The daily limit of codes is reached. You can request a new one after {}. The latest code still works.",
                utc_text(until)
            );
            too_early(&CodePage::new(&portal, &pending).notice(notice), seconds_until(until, now))?
        }
        CodeEmailOutcome::SignInLimitReached => {
            let notice = format!(
                "{MAX_CODE_EMAILS_PER_SIGN_IN} codes were sent, the maximum for one sign-in. Use the latest code or sign in again."
            );
            page(StatusCode::TOO_MANY_REQUESTS, &CodePage::new(&portal, &pending).notice(notice))?
        }
        CodeEmailOutcome::LockedOut { until } => {
            return Err(pending_email_code::lockout_active_page(until, now).into());
        }
        CodeEmailOutcome::Gone => return Err(pending_email_code::expired_page().into()),
    };
    // Renew the cookie: the new code outlives the old one.
    response.headers_mut().append(header::SET_COOKIE, pending_email_code::cookie(&token)?);
    Ok(response)
}

/// Shows the page again after a resend request that came too early.
fn too_early(shown: &CodePage<'_>, retry_after_s: u32) -> Result<Response, PageError> {
    let mut response = page(StatusCode::TOO_MANY_REQUESTS, shown)?;
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s));
    Ok(response)
}

fn wait_text(at: UnixMillis, now: UnixMillis) -> String {
    match seconds_until(at, now) {
        1 => "1 second".to_owned(),
        seconds if seconds < 120 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}
