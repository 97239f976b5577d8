//! `GET /sessions`: where a person is signed in, the last used first.

use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::Moment;
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{Session, SessionId, UnixMillis};
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
    place: String,
    started: Moment,
    last_used: Moment,
    is_this: bool,
}

impl Row {
    /// This browser's is in use at this moment, whatever was noted last.
    fn new(session: Session, this: SessionId, now: UnixMillis) -> Self {
        let is_this = session.id == this;
        let last_used_at = if is_this { now } else { session.last_used_at };
        Self {
            id: session.id.0,
            browser: session.browser,
            place: session.place,
            started: Moment::new(session.started_at, now),
            last_used: Moment::new(last_used_at, now),
            is_this,
        }
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let (times, now) = (portal.settings.session_times, portal.clock.now());
    let found = portal.store.sessions.sessions_of(signed_in.person.id, times, now).await?;
    let rows = found.into_iter().map(|session| Row::new(session, signed_in.session.id, now)).collect();
    let sessions = SessionsPage {
        frame: Frame::new(&portal, &signed_in, Section::Sessions),
        rows,
        done: match query.as_deref() {
            Some("ended=one") => Some("That session has ended."),
            Some("ended=others") => Some("All other sessions have ended."),
            _ => None,
        },
        idle_min: times.idle.as_secs() / 60,
        max_h: times.max.as_secs() / 3600,
    };
    Ok(page(StatusCode::OK, &sessions)?)
}
