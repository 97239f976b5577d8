//! `GET /clients/export.jsonl` and `GET /clients/export.csv`: every client that a person may read, whole and with its entries,
//! as a file. It is read some clients at a time while it is sent, and the policy is asked about each of them.

use crate::client_lines::{write_csv_client, write_csv_head, write_jsonl_client};
use crate::failure::refused_by_store;
use crate::file_reply::{Chunk, file_reply};
use crate::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{ClientId, Day};
use chancery_pages::Refusal;
use chancery_policy::{ClientInQuestion, ExportClient, ListClients, Permit, TheFirm};
use chancery_store::ClientRecord;
use futures_util::stream;
use std::io;
use std::sync::Arc;

/// Clients that are in memory at one time, with all that is written about them.
const CLIENTS_AT_ONCE: u32 = 20;

#[derive(Clone, Copy, Debug)]
enum Format {
    JsonLines,
    Csv,
}

pub(crate) async fn jsonl(State(portal): State<Arc<Portal>>, who: SignedIn) -> Result<Response, Refusal> {
    export(portal, who, Format::JsonLines).await
}

pub(crate) async fn csv(State(portal): State<Arc<Portal>>, who: SignedIn) -> Result<Response, Refusal> {
    export(portal, who, Format::Csv).await
}

async fn export(portal: Arc<Portal>, who: SignedIn, format: Format) -> Result<Response, Refusal> {
    let listing = portal.permit::<ListClients>(&who, TheFirm).await?;
    let day = Day::of(portal.clock.now());
    let (kind, name) = match format {
        Format::JsonLines => ("application/x-ndjson", format!("clients-{day}.jsonl")),
        Format::Csv => ("text/csv; charset=utf-8; header=present", format!("clients-{day}.csv")),
    };
    let mut head = Vec::new();
    if let Format::Csv = format {
        write_csv_head(&mut head).map_err(cannot_write)?;
    }
    let (first, rest) = Rest { portal, who, listing, format, after: None }.read().await?;
    head.extend(first);
    let rest = stream::try_unfold(rest, |rest| async {
        match rest {
            None => Ok(None),
            Some(rest) => {
                rest.read().await.map(Some).map_err(|refusal| io::Error::other(broken_off(&refusal)))
            }
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
    async fn read(self) -> Result<(Chunk, Option<Self>), Refusal> {
        let Self { portal, who, listing, after, .. } = &self;
        let found = portal.store.ownerships(listing, None, *after, CLIENTS_AT_ONCE).await;
        let found = found.map_err(|error| refused_by_store(&error))?;
        let mut permits = Vec::new();
        for ownership in &found {
            let about = ClientInQuestion { id: ownership.client, owner: Some(ownership.owner) };
            match portal.permit::<ExportClient>(who, about).await {
                Ok(permit) => permits.push(permit),
                // On record, and left out.
                Err(refusal) if refusal.status == StatusCode::FORBIDDEN => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let records = match permits.is_empty() {
            true => Vec::new(),
            false => portal.store.export_clients(permits).await.map_err(|error| refused_by_store(&error))?,
        };
        let chunk = self.format.write(&records).map_err(cannot_write)?;
        let is_last = found.len() < CLIENTS_AT_ONCE as usize;
        let after = found.last().map(|ownership| ownership.client);
        Ok((chunk, (!is_last).then_some(Self { after, ..self })))
    }
}

impl Format {
    fn write(self, records: &[ClientRecord]) -> io::Result<Chunk> {
        let mut chunk = Vec::new();
        for ClientRecord { client, entries, .. } in records {
            match self {
                Self::JsonLines => write_jsonl_client(&mut chunk, client, entries)?,
                Self::Csv => write_csv_client(&mut chunk, client, entries)?,
            }
        }
        Ok(chunk)
    }
}

/// For the log: nobody reads a page any more.
fn broken_off(refusal: &Refusal) -> String {
    refusal.internal.clone().unwrap_or_else(|| refusal.reason.clone())
}

fn cannot_write(error: io::Error) -> Refusal {
    Refusal::internal(format!("a line of a file cannot be written: {error}"))
}
