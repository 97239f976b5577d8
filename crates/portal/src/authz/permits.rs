//! Every page's way to a record: ask the policy for this person and this request, write down what it decides, and go on only with
//! a permit. Nothing is remembered from one request to the next.

use crate::error::{PageError, forbidden};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use chancery_domain::ClientId;
use chancery_policy::{Act, ClientInQuestion, Denial, Permit};
use chancery_store::ClientError;
use std::sync::Arc;

/// How often to ask again about a client that changes hands while it is asked for.
pub(crate) const MAX_RETRIES: u32 = 5;

impl Portal {
    /// Asks for what is about no single client that is there. A denial is on record when this returns.
    pub(crate) async fn permit<A: Act>(
        &self,
        who: &SignedIn,
        about: A::About,
    ) -> Result<Permit<A>, PageError> {
        match self.policy.decide::<A>(&who.asking(self), about) {
            Ok(permit) => Ok(permit),
            Err(denial) => Err(self.denied(denial).await),
        }
    }

    /// Whether it would be allowed, for a page that comes before the step itself: the form, or what is wrong with it. A denial is on
    /// record as that of the step; the step is decided again, and on record, when it is taken.
    pub(crate) async fn ensure_allowed<A: Act>(
        &self,
        who: &SignedIn,
        about: A::About,
    ) -> Result<(), PageError> {
        match self.policy.decide::<A>(&who.asking(self), about) {
            Ok(_not_used) => Ok(()),
            Err(denial) => Err(self.denied(denial).await),
        }
    }

    /// The same about a client, before something is read that was sent to be changed.
    pub(crate) async fn ensure_allowed_on_client<A>(
        &self,
        who: &SignedIn,
        id: ClientId,
    ) -> Result<(), PageError>
    where
        A: Act<About = ClientInQuestion>,
    {
        let owner = self.store.clients.owner_of(id).await?;
        self.ensure_allowed::<A>(who, ClientInQuestion { id, owner }).await
    }

    /// Asks about a client, and takes the step that the permit is for. Where the client changes hands in between, asks again.
    pub(crate) async fn with_client_permit<A, T, F>(
        &self,
        who: &SignedIn,
        id: ClientId,
        step: impl Fn(Permit<A>) -> F,
    ) -> Result<T, PageError>
    where
        A: Act<About = ClientInQuestion>,
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut asked = 0;
        loop {
            let owner = self.store.clients.owner_of(id).await?;
            let permit = self.permit::<A>(who, ClientInQuestion { id, owner }).await?;
            asked += 1;
            match step(permit).await {
                Err(ClientError::OwnerChanged(_)) if asked < MAX_RETRIES => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn denied(&self, denial: Denial) -> PageError {
        // Whoever hangs up in this moment is on record all the same.
        let store = Arc::clone(&self.store);
        match tokio::spawn(async move { store.audit.note_denial(denial).await }).await {
            Ok(Ok(())) => forbidden().into(),
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        }
    }
}
