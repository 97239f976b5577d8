//! The entry's number in a path `/clients/{id}/entries/{entry}…`. Like a client's: what is no integer is no address.

use crate::authz::authority::ClientNumber;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use chancery_domain::{ClientId, EntryId};
use chancery_web::Refusal;
use std::collections::HashMap;

/// Both numbers: an entry is only ever addressed under its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryNumber {
    pub(crate) client: ClientId,
    pub(crate) entry: EntryId,
}

impl<S: Send + Sync> FromRequestParts<S> for EntryNumber {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let ClientNumber(client) = ClientNumber::from_request_parts(parts, state).await?;
        let Path(segments) = Path::<HashMap<String, String>>::from_request_parts(parts, state)
            .await
            .map_err(|_| Refusal::not_found())?;
        let entry = segments.get("entry").and_then(|text| ClientNumber::parse(text));
        let ClientNumber(ClientId(entry)) = entry.ok_or_else(Refusal::not_found)?;
        Ok(Self { client, entry: EntryId(entry) })
    }
}
