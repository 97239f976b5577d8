//! The only path to a record: ask the policy about this person and this request, audit the decision, and continue only with a
//! permit. Nothing is cached between requests.

use crate::error::{PageError, forbidden};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::StatusCode;
use chancery_domain::ClientId;
use chancery_policy::{AuthzAction, AuthzRequest, ClientResource, Denial, Permit, ReadClient};
use chancery_store::{ClientError, ClientOwner};
use std::sync::Arc;

/// Maximum number of decisions for a client whose owner keeps changing during the request.
pub(crate) const MAX_RETRIES: u32 = 5;

impl Portal {
    /// Requests a permit. A denial is audited before this returns. For a step on one client, use `with_client_permit`.
    pub(crate) async fn permit<A: AuthzAction>(
        &self,
        signed_in: &SignedIn,
        resource: A::Resource,
    ) -> Result<Permit<A>, PageError> {
        self.permit_at::<A>(&signed_in.authz_request(self), resource).await
    }

    /// A permit for one of several steps with the same time.
    pub(crate) async fn permit_at<A: AuthzAction>(
        &self,
        authz_request: &AuthzRequest,
        resource: A::Resource,
    ) -> Result<Permit<A>, PageError> {
        match self.policy.decide::<A>(authz_request, resource) {
            Ok(permit) => Ok(permit),
            Err(denial) => Err(self.denied(denial).await),
        }
    }

    /// A permit to read each of the clients that the person may read, for a step that one audit row covers. A denial is
    /// audited on its own, and that client is left out.
    pub(crate) async fn permits_to_read(
        &self,
        signed_in: &SignedIn,
        clients: &[ClientOwner],
    ) -> Result<Vec<Permit<ReadClient>>, PageError> {
        let mut permits = Vec::with_capacity(clients.len());
        for ClientOwner { client, owner } in clients {
            let resource = ClientResource { id: *client, owner: Some(*owner) };
            match self.permit::<ReadClient>(signed_in, resource).await {
                Ok(permit) => permits.push(permit),
                Err(error) if error.status == StatusCode::FORBIDDEN => {}
                Err(error) => return Err(error),
            }
        }
        Ok(permits)
    }

    /// Checks the policy for a page that precedes the actual step: the form, or its problems. A denial is audited as a denial of
    /// that step. The step itself is decided and audited again when it runs.
    pub(crate) async fn ensure_allowed<A: AuthzAction>(
        &self,
        signed_in: &SignedIn,
        resource: A::Resource,
    ) -> Result<(), PageError> {
        match self.policy.decide::<A>(&signed_in.authz_request(self), resource) {
            Ok(_not_used) => Ok(()),
            Err(denial) => Err(self.denied(denial).await),
        }
    }

    /// The same check for a client, before a submitted form is parsed.
    pub(crate) async fn ensure_allowed_on_client<A>(
        &self,
        signed_in: &SignedIn,
        id: ClientId,
    ) -> Result<(), PageError>
    where
        A: AuthzAction<Resource = ClientResource>,
    {
        let owner = self.store.clients.owner_of(id).await?;
        self.ensure_allowed::<A>(signed_in, ClientResource { id, owner }).await
    }

    /// Requests a permit for a client and runs the step with it. If the client's owner changes in between, decides again.
    pub(crate) async fn with_client_permit<A, T, F>(
        &self,
        signed_in: &SignedIn,
        id: ClientId,
        step: impl Fn(Permit<A>) -> F,
    ) -> Result<T, PageError>
    where
        A: AuthzAction<Resource = ClientResource>,
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut attempts = 0;
        loop {
            let owner = self.store.clients.owner_of(id).await?;
            let permit = self.permit::<A>(signed_in, ClientResource { id, owner }).await?;
            attempts += 1;
            match step(permit).await {
                Err(ClientError::OwnerChanged(_)) if attempts < MAX_RETRIES => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn denied(&self, denial: Denial) -> PageError {
        // A separate task, so that the denial is audited even if the caller disconnects now.
        let (store, action) = (Arc::clone(&self.store), denial.access_request().action);
        match tokio::spawn(async move { store.audit.record_denial(denial).await }).await {
            Ok(Ok(())) => forbidden(action).into(),
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        }
    }
}
