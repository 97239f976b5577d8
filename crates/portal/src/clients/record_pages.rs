//! Whole records for downloads, page by page. If a client gets another owner between two pages, the policy decides again.

use crate::authz::permits::MAX_RETRIES;
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::StatusCode;
use chancery_domain::ClientId;
use chancery_policy::{AuthzAction, ClientResource, ExportClient, Permit};
use chancery_store::{ClientError, ClientOwner, RecordPart, RecordReader};
use chancery_web::ErrorPage;

impl Portal {
    /// Opens the records that the person may export, by number. If a client's owner changes meanwhile, the policy decides again.
    pub(crate) async fn open_records(
        &self,
        signed_in: &SignedIn,
        found: Vec<ClientOwner>,
    ) -> Result<RecordReader<ExportClient>, PageError> {
        let mut reader = self.store.clients.open_records(Vec::new()).await?;
        let mut remaining = found;
        for _ in 0..MAX_RETRIES {
            let permits = self.export_permits(signed_in, &remaining).await?;
            let permitted: Vec<ClientId> = permits.iter().filter_map(Permit::client).collect();
            let opened = self.store.clients.open_records(permits).await?;
            let mut left_out = permitted;
            left_out.retain(|client| opened.clients().all(|opened| opened != *client));
            reader.merge(opened);
            remaining = Vec::new();
            for client in left_out {
                if let Some(owner) = self.store.clients.owner_of(client).await? {
                    remaining.push(ClientOwner { client, owner });
                }
            }
            if remaining.is_empty() {
                return Ok(reader);
            }
        }
        // No file is better than an incomplete one.
        let client = remaining.first().map_or(ClientId(0), |remaining| remaining.client);
        Err(kept_changing(client))
    }

    /// Permits for those that the person may export. The others are audited as denied.
    async fn export_permits(
        &self,
        signed_in: &SignedIn,
        clients: &[ClientOwner],
    ) -> Result<Vec<Permit<ExportClient>>, PageError> {
        let mut permits = Vec::with_capacity(clients.len());
        for ClientOwner { client, owner } in clients {
            let resource = ClientResource { id: *client, owner: Some(*owner) };
            match self.permit::<ExportClient>(signed_in, resource).await {
                Ok(permit) => permits.push(permit),
                Err(error) if error.status == StatusCode::FORBIDDEN => {}
                Err(error) => return Err(error),
            }
        }
        Ok(permits)
    }

    /// The next page of an export. A client that the person may no longer export is left out, unless a part of it is written.
    pub(crate) async fn next_export_page(
        &self,
        signed_in: &SignedIn,
        reader: &mut RecordReader<ExportClient>,
    ) -> Result<Option<Vec<RecordPart>>, PageError> {
        loop {
            match self.next_record_page(signed_in, reader).await {
                Err((error, Some(denied)))
                    if error.status == StatusCode::FORBIDDEN && !reader.leave_out(denied) => {}
                outcome => return outcome.map_err(|(error, _)| error),
            }
        }
    }

    /// The next page. If the next client has a new owner, the policy decides again; the error then has the client.
    pub(crate) async fn next_record_page<A: AuthzAction<Resource = ClientResource>>(
        &self,
        signed_in: &SignedIn,
        reader: &mut RecordReader<A>,
    ) -> Result<Option<Vec<RecordPart>>, (PageError, Option<ClientId>)> {
        let mut attempts = 0;
        loop {
            let id = match reader.next_page().await {
                Ok(page) => return Ok(page),
                Err(ClientError::OwnerChanged(id)) => id,
                Err(error) => return Err((error.into(), None)),
            };
            if attempts == MAX_RETRIES {
                return Err((kept_changing(id), Some(id)));
            }
            attempts += 1;
            self.renew_permit(signed_in, reader, id).await.map_err(|error| (error, Some(id)))?;
        }
    }

    async fn renew_permit<A: AuthzAction<Resource = ClientResource>>(
        &self,
        signed_in: &SignedIn,
        reader: &mut RecordReader<A>,
        id: ClientId,
    ) -> Result<(), PageError> {
        let owner = self.store.clients.owner_of(id).await?;
        let permit = self.permit::<A>(signed_in, ClientResource { id, owner }).await?;
        match self.store.clients.renew_permit(permit, reader).await {
            // The next page fails too, and the policy decides once more.
            Ok(()) | Err(ClientError::OwnerChanged(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn kept_changing(client: ClientId) -> PageError {
    ErrorPage::unavailable(format!("owner of client {client} kept changing during the download")).into()
}
