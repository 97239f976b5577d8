//! `POST /sessions/end`: ends one of one's own sessions, all but this one, or all. With several, those at the built-in identity
//! provider end too: with one of them a browser that was just signed out would be let in again without a password. For
//! another provider this does nothing, since no account here has its subject.

use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::SessionId;
use chancery_web::{ErrorPage, Posted};
use std::sync::Arc;

#[derive(serde::Deserialize)]
pub(crate) struct Chosen {
    /// A session's number, `others`, or `everywhere`.
    end: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    visitor: Visitor,
    form: Result<Posted<Chosen>, ErrorPage>,
) -> Result<Response, PageError> {
    let unclear = || ErrorPage::bad_form("It does not say which session is to end.");
    let Posted(Chosen { end }) = form.map_err(|_| unclear())?;
    let (person, this) = (signed_in.person.id, signed_in.session.id);
    let identity = &signed_in.person.identity;
    let origin = visitor.origin(portal.clock.now());
    match end.as_str() {
        "others" => {
            portal.store.session_revoker.end_provider_sessions_of(&identity.subject).await?;
            portal.store.sessions.end_all_sessions(person, Some(this), &origin).await?;
            Ok(Redirect::to("/sessions?ended=others").into_response())
        }
        "everywhere" => {
            portal.store.session_revoker.end_provider_sessions_of(&identity.subject).await?;
            portal.store.session_revoker.end_sessions_of_identity(identity, &origin).await?;
            Ok(sign_out::to_signed_out())
        }
        number => {
            let session = SessionId(number.parse().map_err(|_| unclear())?);
            // One that has ended meanwhile is as good as one that ends now; nobody ends another person's.
            portal.store.sessions.end_session(person, session, &origin).await?;
            Ok(match session == this {
                true => sign_out::to_signed_out(),
                false => Redirect::to("/sessions?ended=one").into_response(),
            })
        }
    }
}
