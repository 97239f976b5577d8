//! `POST /sessions/end`: ends one of the user's own sessions, all others, or all. In the last two cases the sessions at the
//! built-in identity provider end too: otherwise a browser that was just signed out could sign in again without a
//! password. With `others`, the one of this browser stays: the provider announces the end of a session to the portal, which
//! would end this session too. For another provider this does nothing, since no account here has its subject.

use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::SessionId;
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

#[derive(serde::Deserialize)]
pub(crate) struct EndSessionForm {
    /// A session's number, `others`, or `everywhere`.
    end: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    visitor: Visitor,
    form: Result<PostedForm<EndSessionForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let invalid_end = || ErrorPage::invalid_form("`end` is missing. Choose a session to end.");
    let PostedForm(EndSessionForm { end }) = form.map_err(|_| invalid_end())?;
    let (person, this) = (signed_in.person.id, signed_in.session.id);
    let identity = &signed_in.person.identity;
    let origin = visitor.origin(portal.clock.now());
    match end.as_str() {
        "others" => {
            let own_sid = signed_in.session.sid.as_deref().unwrap_or_default();
            portal.store.session_revoker.end_other_provider_sessions(&identity.subject, own_sid).await?;
            portal.store.sessions.end_all_sessions(person, Some(this), &origin).await?;
            Ok(Redirect::to("/sessions?ended=others").into_response())
        }
        "everywhere" => {
            portal.store.session_revoker.end_provider_sessions(&identity.subject).await?;
            portal.store.session_revoker.end_sessions_of_identity(identity, &origin).await?;
            Ok(sign_out::redirect_to_signed_out(&portal))
        }
        number => {
            let session = SessionId(number.parse().map_err(|_| invalid_end())?);
            // Ending an ended session succeeds; another person's session is never affected.
            portal.store.sessions.end_session(person, session, &origin).await?;
            Ok(match session == this {
                true => sign_out::redirect_to_signed_out(&portal),
                false => Redirect::to("/sessions?ended=one").into_response(),
            })
        }
    }
}
