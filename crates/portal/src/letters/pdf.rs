//! `GET /clients/{id}/letters/{entry}/pdf`: the letter as PDF.

use super::{document, page};
use crate::error::PageError;
use crate::file_response::pdf_response;
use crate::path::EntryNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_store::OpenedLetter;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
) -> Result<Response, PageError> {
    let OpenedLetter { client, letter, .. } = page::read(&portal, &signed_in, client, entry).await?;
    let pdf = document::render_pdf(&portal, &client, &letter, &signed_in.local_time(&portal)).await?;
    pdf_response(&document::file_name(client.id, letter.id), pdf)
}
