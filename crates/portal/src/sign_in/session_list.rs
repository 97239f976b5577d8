//! `GET /sessions`: the person's active sessions, most recently used first.

use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{Session, SessionId};
use chancery_web::page;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "sign_in/session_list.html")]
struct SessionsPage<'a> {
    frame: Frame<'a>,
    rows: Vec<Row>,
    done: Option<&'static str>,
    idle_min: u64,
    max_h: u64,
}

struct Row {
    id: i64,
    browser: String,
    ip_address: String,
    started: DisplayTime,
    last_used: DisplayTime,
    is_this: bool,
}

impl Row {
    /// The current session is in use now, whatever the store recorded last.
    fn new(session: Session, this: SessionId, local: &LocalTime) -> Self {
        let is_this = session.id == this;
        let last_used_at = if is_this { local.now } else { session.last_used_at };
        Self {
            id: session.id.0,
            browser: session.user_agent,
            ip_address: session.ip_address,
            started: DisplayTime::new(session.started_at, local),
            last_used: DisplayTime::new(last_used_at, local),
            is_this,
        }
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let (times, local) = (portal.settings.session_times, signed_in.local_time(&portal));
    let found = portal.store.sessions.list_sessions(signed_in.person.id, times, local.now).await?;
    let rows = found.into_iter().map(|session| Row::new(session, signed_in.session.id, &local)).collect();
    let sessions = SessionsPage {
        frame: Frame::new(&portal, &signed_in, Section::Sessions),
        rows,
        done: match query.as_deref() {
            Some("ended=one") => Some("Session ended."),
            Some("ended=others") => Some("All other sessions ended."),
            _ => None,
        },
        idle_min: times.idle.as_secs() / 60,
        max_h: times.max.as_secs() / 3600,
    };
    Ok(page(StatusCode::OK, &sessions)?)
}
