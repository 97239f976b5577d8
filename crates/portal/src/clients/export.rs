//! `GET /clients/export.jsonl` and `GET /clients/export.csv`: every client that the person may export, with all
//! entries. The file is read in pages of bounded size while it is sent, and the policy decides on each client. Both
//! need a recent authentication, which `GET /clients/export`, the page with the links, asks for: a browser that
//! downloads a file cannot show a sign-in page.

use crate::error::PageError;
use crate::export_quota::count_export;
use crate::file_response::{Chunk, ChunkSource, file_response, rest_of};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_client_files::{ClientWriter, Format};
use chancery_domain::{ClientId, Day};
use chancery_policy::{ExportClient, FirmResource, ListClients, Permit};
use chancery_store::{RecordPart, RecordReader};
use chancery_web::page;
use std::io;
use std::sync::Arc;

/// Clients that are decided on at a time. Their entries are read in pages.
const BATCH_CLIENTS: u32 = 20;

const PAGE: &str = "/clients/export";

#[derive(Template)]
#[template(path = "clients/export.html")]
struct ExportPage<'a> {
    frame: Frame<'a>,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
) -> Result<Response, PageError> {
    if let Some(redirect) = step_up::required_for_page(&portal, &signed_in, PAGE)? {
        return Ok(redirect);
    }
    let export = ExportPage { frame: Frame::new(&portal, &signed_in, Section::Clients) };
    Ok(page(StatusCode::OK, &export)?)
}

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
    step_up::ensure_recent(&portal, &signed_in, PAGE).await?;
    count_export(&portal, &signed_in).await?;
    let day = Day::containing(portal.clock.now());
    let (kind, name) = match format {
        Format::Jsonl => ("application/x-ndjson", format!("clients-{day}.jsonl")),
        Format::Csv => ("text/csv; charset=utf-8; header=present", format!("clients-{day}.csv")),
    };
    let mut head = Vec::new();
    format.write_header(&mut head)?;
    let export = Export {
        portal,
        signed_in,
        listing,
        format,
        after: None,
        is_last_batch: false,
        reader: None,
        writer: None,
    };
    let (first, rest) = export.next_chunk().await?;
    head.extend(first);
    Ok(file_response(kind, &name, head, rest_of(rest)))
}

/// An export, as far as it is written.
struct Export {
    portal: Arc<Portal>,
    signed_in: SignedIn,
    listing: Permit<ListClients>,
    format: Format,
    after: Option<ClientId>,
    is_last_batch: bool,
    /// The records of the current batch.
    reader: Option<RecordReader<ExportClient>>,
    /// The client that is being written.
    writer: Option<ClientWriter>,
}

impl ChunkSource for Export {
    async fn next_chunk(mut self) -> Result<(Chunk, Option<Self>), PageError> {
        // A slow download may take hours. It ends if the person has lost their role or session.
        self.signed_in = self.signed_in.refresh(&self.portal).await?;
        let mut chunk = Chunk::new();
        loop {
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None if self.is_last_batch => return Ok((chunk, None)),
                None => self.next_batch().await?,
            };
            if let Some(parts) = self.portal.next_export_page(&self.signed_in, &mut reader).await? {
                for part in parts {
                    self.write(&mut chunk, part)?;
                }
                self.reader = Some(reader);
                return Ok((chunk, Some(self)));
            }
        }
    }
}

impl Export {
    async fn next_batch(&mut self) -> Result<RecordReader<ExportClient>, PageError> {
        let clients = &self.portal.store.clients;
        let found = clients.client_owners(&self.listing, None, self.after, BATCH_CLIENTS).await?;
        self.is_last_batch = found.len() < BATCH_CLIENTS as usize;
        self.after = found.last().map(|ownership| ownership.client);
        self.portal.open_records(&self.signed_in, found).await
    }

    fn write(&mut self, chunk: &mut Chunk, part: RecordPart) -> io::Result<()> {
        let RecordPart { client, entries, is_last, .. } = part;
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let currency = self.portal.settings.invoice_terms.currency;
                self.format.begin_client(chunk, client, currency)?
            }
        };
        writer.write_entries(chunk, &entries)?;
        match is_last {
            true => writer.finish(chunk),
            false => {
                self.writer = Some(writer);
                Ok(())
            }
        }
    }
}
