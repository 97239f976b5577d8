//! `GET /clients/{id}` as JSON: the record with all its entries, read in pages of bounded size while the reply is sent.

use super::json::RecordWriter;
use crate::error::{PageError, client_not_found};
use crate::file_response::{Chunk, ChunkSource, rest_of, streamed_body};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use chancery_domain::ClientId;
use chancery_policy::ReadClient;
use chancery_store::RecordReader;
use std::sync::Arc;

pub(super) async fn respond(
    portal: Arc<Portal>,
    signed_in: SignedIn,
    id: ClientId,
) -> Result<Response, PageError> {
    let open = |permit| portal.store.clients.open_record(permit);
    let opened = portal.with_client_permit::<ReadClient, _, _>(&signed_in, id, open).await?;
    let reader = opened.ok_or_else(client_not_found)?;
    let reply = RecordReply { portal: Arc::clone(&portal), signed_in, reader, writer: None };
    let (first, rest) = reply.next_chunk().await?;
    let body = match rest {
        None => Body::from(first),
        rest => streamed_body(first, rest_of(rest)),
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A record's JSON, as far as it is written.
struct RecordReply {
    portal: Arc<Portal>,
    signed_in: SignedIn,
    reader: RecordReader<ReadClient>,
    writer: Option<RecordWriter>,
}

impl ChunkSource for RecordReply {
    async fn next_chunk(mut self) -> Result<(Chunk, Option<Self>), PageError> {
        if self.writer.is_some() {
            // A slow download may take hours. It ends if the person has lost their role or session.
            self.signed_in = self.signed_in.refresh(&self.portal).await?;
        }
        let page = self.portal.next_record_page(&self.signed_in, &mut self.reader).await;
        let mut chunk = Chunk::new();
        for part in page.map_err(|(error, _)| error)?.unwrap_or_default() {
            let mut writer = match self.writer.take() {
                Some(writer) => writer,
                None => {
                    let currency = self.portal.settings.invoice_terms.currency;
                    RecordWriter::begin(&mut chunk, part.client, currency)?
                }
            };
            writer.write_entries(&mut chunk, &part.entries)?;
            if part.is_last {
                writer.finish(&mut chunk)?;
                return Ok((chunk, None));
            }
            self.writer = Some(writer);
        }
        Ok((chunk, Some(self)))
    }
}
