//! `GET /clients/export.jsonl` and `GET /clients/export.csv`: every client that a person may read, whole and with its entries,
//! as a file. It is read some clients at a time while it is sent, and the policy is asked about each of them.

use crate::authz::permits::MAX_RETRIES;
use crate::error::PageError;
use crate::file_reply::{Chunk, file_reply};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_client_files::Format;
use chancery_domain::{ClientId, Day};
use chancery_policy::{ClientInQuestion, ExportClient, ListClients, Permit, TheFirm};
use chancery_store::{ClientRecord, Ownership};
use chancery_web::ErrorPage;
use futures_util::stream;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Clients that are in memory at one time, with all that is written about them.
const CLIENTS_AT_ONCE: u32 = 20;

pub(crate) async fn jsonl(State(portal): State<Arc<Portal>>, who: SignedIn) -> Result<Response, PageError> {
    export(portal, who, Format::Jsonl).await
}

pub(crate) async fn csv(State(portal): State<Arc<Portal>>, who: SignedIn) -> Result<Response, PageError> {
    export(portal, who, Format::Csv).await
}

async fn export(portal: Arc<Portal>, who: SignedIn, format: Format) -> Result<Response, PageError> {
    let listing = portal.permit::<ListClients>(&who, TheFirm).await?;
    let day = Day::of(portal.clock.now());
    let (kind, name) = match format {
        Format::Jsonl => ("application/x-ndjson", format!("clients-{day}.jsonl")),
        Format::Csv => ("text/csv; charset=utf-8; header=present", format!("clients-{day}.csv")),
    };
    let mut head = Vec::new();
    format.write_head(&mut head)?;
    let (first, rest) = Rest { portal, who, listing, format, after: None }.read().await?;
    head.extend(first);
    let rest = stream::try_unfold(rest, |rest| async {
        match rest {
            None => Ok(None),
            Some(rest) => rest.read().await.map(Some).map_err(|error| io::Error::other(broken_off(&error))),
        }
    });
    Ok(file_reply(kind, &name, head, rest))
}

/// What is still to be read.
struct Rest {
    portal: Arc<Portal>,
    who: SignedIn,
    listing: Permit<ListClients>,
    format: Format,
    after: Option<ClientId>,
}

impl Rest {
    async fn read(self) -> Result<(Chunk, Option<Self>), PageError> {
        let Self { portal, who, listing, format, after } = self;
        // A slow reader may take hours; whoever has lost their role or their session meanwhile gets no more.
        let who = who.again(&portal).await?;
        let found = portal.store.clients.ownerships(&listing, None, after, CLIENTS_AT_ONCE).await?;
        let is_last = found.len() < CLIENTS_AT_ONCE as usize;
        let after = found.last().map(|ownership| ownership.client);
        let mut chunk = Chunk::new();
        for ClientRecord { client, entries, .. } in portal.records(&who, found).await? {
            format.write_client(&mut chunk, &client, &entries)?;
        }
        Ok((chunk, (!is_last).then_some(Self { portal, who, listing, format, after })))
    }
}

impl Portal {
    /// Those that the person may take along, by number. One that changes hands meanwhile is asked about again.
    pub(crate) async fn records(
        &self,
        who: &SignedIn,
        mut wanted: Vec<Ownership>,
    ) -> Result<Vec<ClientRecord>, PageError> {
        let mut found: BTreeMap<ClientId, ClientRecord> = BTreeMap::new();
        for _ in 0..MAX_RETRIES {
            let mut permits = Vec::with_capacity(wanted.len());
            let mut permitted = Vec::with_capacity(wanted.len());
            for Ownership { client, owner } in std::mem::take(&mut wanted) {
                let about = ClientInQuestion { id: client, owner: Some(owner) };
                match self.permit::<ExportClient>(who, about).await {
                    Ok(permit) => {
                        permits.push(permit);
                        permitted.push(client);
                    }
                    // On record, and left out.
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
                    wanted.push(Ownership { client, owner });
                }
            }
            if wanted.is_empty() {
                break;
            }
        }
        match wanted.first() {
            None => Ok(found.into_values().collect()),
            // Better no file than one that is not whole.
            Some(Ownership { client, .. }) => {
                Err(ErrorPage::unavailable(format!("client {client} changed hands again and again")).into())
            }
        }
    }
}

/// For the log: nobody reads a page any more.
fn broken_off(error: &PageError) -> String {
    error.internal.clone().unwrap_or_else(|| error.reason.clone())
}
