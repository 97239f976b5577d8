//! Every page's way to a client's record: ask the policy for this person and this request, write down what it decides, and go on
//! only with a permit. Nothing is remembered from one request to the next.

use crate::failure::refused_by_store;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use chancery_domain::{Asker, ClientId};
use chancery_policy::{Act, Asking, ClientInQuestion, Permit};
use chancery_store::StoreError;
use chancery_web::Refusal;
use std::collections::HashMap;
use std::sync::Arc;

/// How often to ask anew about a client that changes hands while it is asked for.
pub(crate) const MAX_ASKED_ANEW: u32 = 5;

/// The number in a path `/clients/{id}…`. What is no integer is no client's address; one that is too large for any client is a
/// number like another that is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientNumber(pub(crate) ClientId);

impl<S: Send + Sync> FromRequestParts<S> for ClientNumber {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(segments) = Path::<HashMap<String, String>>::from_request_parts(parts, state)
            .await
            .map_err(|_| Refusal::not_found())?;
        segments.get("id").and_then(|id| Self::parse(id)).ok_or_else(Refusal::not_found)
    }
}

impl ClientNumber {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self(ClientId(text.parse().unwrap_or(i64::MAX))))
    }
}

impl SignedIn {
    pub(crate) fn asker(&self) -> Asker {
        Asker::Person { id: self.person.id, role: self.person.role }
    }

    fn asking(&self, portal: &Portal) -> Asking {
        Asking { by: self.asker(), at: portal.clock.now(), request_id: self.request_id.clone() }
    }
}

impl Portal {
    /// Asks for what is about no single client that is there. A refusal is on record when this returns.
    pub(crate) async fn permit<A: Act>(&self, who: &SignedIn, about: A::About) -> Result<Permit<A>, Refusal> {
        match self.policy.decide::<A>(&who.asking(self), about) {
            Ok(permit) => Ok(permit),
            Err(denial) => {
                // Whoever hangs up in this moment is on record all the same.
                let store = Arc::clone(&self.store);
                let noted = tokio::spawn(async move { store.note_denial(denial).await }).await;
                let noted = noted.map_err(|error| Refusal::internal(error.to_string()))?;
                noted.map_err(|error| refused_by_store(&error))?;
                Err(forbidden())
            }
        }
    }

    /// Before something is read that was sent to be changed: whoever may not change it is refused for that, and it is on record as
    /// that. Whoever may is not asked about here; the step that they take is.
    pub(crate) async fn refuse_who_may_not<A>(&self, who: &SignedIn, id: ClientId) -> Result<(), Refusal>
    where
        A: Act<About = ClientInQuestion>,
    {
        let owner = self.store.owner_of(id).await.map_err(|error| refused_by_store(&error))?;
        let about = ClientInQuestion { id, owner };
        match self.policy.would_allow::<A>(who.asker(), about) {
            true => Ok(()),
            false => self.permit::<A>(who, about).await.map(drop),
        }
    }

    /// Asks about a client, and takes the step that the permit is for. Where the client changes hands in between, asks anew.
    pub(crate) async fn on_client<A, T, F>(
        &self,
        who: &SignedIn,
        id: ClientId,
        step: impl Fn(Permit<A>) -> F,
    ) -> Result<T, Refusal>
    where
        A: Act<About = ClientInQuestion>,
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut asked = 0;
        loop {
            let owner = self.store.owner_of(id).await.map_err(|error| refused_by_store(&error))?;
            let permit = self.permit::<A>(who, ClientInQuestion { id, owner }).await?;
            asked += 1;
            match step(permit).await {
                Err(StoreError::OwnerChanged(_)) if asked < MAX_ASKED_ANEW => {}
                outcome => return outcome.map_err(|error| refused_by_store(&error)),
            }
        }
    }
}

/// One answer for a client that is somebody else's, for a number that is no client's, and for a page that is not for this
/// person's role.
pub(crate) fn forbidden() -> Refusal {
    Refusal::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        "You cannot open this page",
        "It may belong to another consultant, or it may not exist. We do not say which.",
    )
    .advice(
        "If you need it for your work, ask a partner to assign the client to you. If you typed the address, check it.",
    )
    .way_on("/clients", "Go to your clients")
}

/// For those who may read every client: there is none of this number.
pub(crate) fn no_such_client() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such client",
        "No client of the firm has this number.",
    )
    .advice("If you typed it, check it.")
    .way_on("/clients", "Go to the clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_integer_is_a_clients_number_and_nothing_else_is() {
        let number = |text: &str| ClientNumber::parse(text).map(|ClientNumber(ClientId(id))| id);
        assert_eq!(number("1042"), Some(1042));
        assert_eq!(number("-3"), Some(-3));
        assert_eq!(number("99999999999999999999999"), Some(i64::MAX));
        for text in ["", "-", "+5", "1e3", "1042.0", " 7", "0x10", "١٢", "new"] {
            assert_eq!(number(text), None, "{text:?}");
        }
    }
}
