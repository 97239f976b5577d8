//! `GET /clients/export.jsonl` and `GET /clients/export.csv`: every client that the person may export, with all entries. Clients are
//! read in batches while the file is sent, and the policy decides on each of them.

use crate::authz::permits::MAX_RETRIES;
use crate::error::PageError;
use crate::file_response::{Chunk, file_response};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_client_files::Format;
use chancery_domain::{ClientId, Day};
use chancery_policy::{ClientResource, ExportClient, FirmResource, ListClients, Permit};
use chancery_store::{ClientOwner, ClientRecord};
use chancery_web::ErrorPage;
use futures_util::stream;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Clients in memory at a time, with all their entries.
const BATCH_CLIENTS: u32 = 20;

pub(crate) async fn jsonl(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
) -> Result<Response, PageError> {
    export(portal, signed_in, Format::Jsonl).await
}

pub(crate) async fn csv(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
) -> Result<Response, PageError> {
    export(portal, signed_in, Format::Csv).await
}

async fn export(portal: Arc<Portal>, signed_in: SignedIn, format: Format) -> Result<Response, PageError> {
    let listing = portal.permit::<ListClients>(&signed_in, FirmResource).await?;
    let day = Day::containing(portal.clock.now());
    let (kind, name) = match format {
        Format::Jsonl => ("application/x-ndjson", format!("clients-{day}.jsonl")),
        Format::Csv => ("text/csv; charset=utf-8; header=present", format!("clients-{day}.csv")),
    };
    let mut head = Vec::new();
    format.write_header(&mut head)?;
    let (first, rest) = ExportCursor { portal, signed_in, listing, format, after: None }.read().await?;
    head.extend(first);
    let rest = stream::try_unfold(rest, |rest| async {
        match rest {
            None => Ok(None),
            Some(rest) => rest.read().await.map(Some).map_err(|error| io::Error::other(log_detail(&error))),
        }
    });
    Ok(file_response(kind, &name, head, rest))
}

/// The remaining part of the export.
struct ExportCursor {
    portal: Arc<Portal>,
    signed_in: SignedIn,
    listing: Permit<ListClients>,
    format: Format,
    after: Option<ClientId>,
}

impl ExportCursor {
    async fn read(self) -> Result<(Chunk, Option<Self>), PageError> {
        let Self { portal, signed_in, listing, format, after } = self;
        // A slow download may take hours. It ends if the person has lost their role or session.
        let signed_in = signed_in.refresh(&portal).await?;
        let found = portal.store.clients.client_owners(&listing, None, after, BATCH_CLIENTS).await?;
        let is_last = found.len() < BATCH_CLIENTS as usize;
        let after = found.last().map(|ownership| ownership.client);
        let mut chunk = Chunk::new();
        for ClientRecord { client, entries, .. } in portal.records(&signed_in, found).await? {
            format.write_client(&mut chunk, &client, &entries)?;
        }
        Ok((chunk, (!is_last).then_some(Self { portal, signed_in, listing, format, after })))
    }
}

impl Portal {
    /// The records that the person may export, by number. If a client's owner changes meanwhile, the policy decides again.
    pub(crate) async fn records(
        &self,
        signed_in: &SignedIn,
        mut remaining: Vec<ClientOwner>,
    ) -> Result<Vec<ClientRecord>, PageError> {
        let mut found: BTreeMap<ClientId, ClientRecord> = BTreeMap::new();
        for _ in 0..MAX_RETRIES {
            let mut permits = Vec::with_capacity(remaining.len());
            let mut permitted = Vec::with_capacity(remaining.len());
            for ClientOwner { client, owner } in std::mem::take(&mut remaining) {
                let resource = ClientResource { id: client, owner: Some(owner) };
                match self.permit::<ExportClient>(signed_in, resource).await {
                    Ok(permit) => {
                        permits.push(permit);
                        permitted.push(client);
                    }
                    // Denied and audited; leave it out.
                    Err(error) if error.status == StatusCode::FORBIDDEN => {}
                    Err(error) => return Err(error),
                }
            }
            if permits.is_empty() {
                break;
            }
            let read = self.store.clients.export_clients(permits).await?;
            found.extend(read.into_iter().map(|record| (record.client.id, record)));
            for client in permitted {
                if !found.contains_key(&client)
                    && let Some(owner) = self.store.clients.owner_of(client).await?
                {
                    remaining.push(ClientOwner { client, owner });
                }
            }
            if remaining.is_empty() {
                break;
            }
        }
        match remaining.first() {
            None => Ok(found.into_values().collect()),
            // No file is better than an incomplete one.
            Some(ClientOwner { client, .. }) => Err(ErrorPage::unavailable(format!(
                "owner of client {client} kept changing during the export"
            ))
            .into()),
        }
    }
}

/// For the log: the headers are sent, so no error page can be shown.
fn log_detail(error: &PageError) -> String {
    error.internal.clone().unwrap_or_else(|| error.reason.clone())
}
