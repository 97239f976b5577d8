//! Numbers and names in paths. A path segment that is not an integer is rejected. A number that is too large is treated like any
//! other unknown number.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use chancery_domain::{AccountId, ClientId, EntryId, KeyPrefix, LetterTemplateId};
use chancery_web::ErrorPage;
use std::collections::HashMap;

/// The client in `/clients/{id}…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientNumber(pub(crate) ClientId);

/// The client and entry in `/clients/{id}/entries/{entry}…`. An entry is only ever addressed under its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryNumber {
    pub(crate) client: ClientId,
    pub(crate) entry: EntryId,
}

/// The account in `/accounts/{account}…`. Handlers take it as a `Result` and check it after the policy has decided, so that a
/// denial reveals nothing.
pub(crate) struct AccountNumber(pub(crate) AccountId);

/// The letter template in `/templates/{template}…`; handled like `AccountNumber`.
pub(crate) struct TemplateNumber(pub(crate) LetterTemplateId);

/// The public prefix of a key in `/accounts/keys/{prefix}/…`; handled like `AccountNumber`.
pub(crate) struct KeyName(pub(crate) KeyPrefix);

impl<S: Send + Sync> FromRequestParts<S> for ClientNumber {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorPage> {
        Ok(Self(ClientId(number(parts, state, "id").await?)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for EntryNumber {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorPage> {
        let (client, entry) = (number(parts, state, "id").await?, number(parts, state, "entry").await?);
        Ok(Self { client: ClientId(client), entry: EntryId(entry) })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AccountNumber {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorPage> {
        Ok(Self(AccountId(number(parts, state, "account").await?)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TemplateNumber {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorPage> {
        Ok(Self(LetterTemplateId(number(parts, state, "template").await?)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for KeyName {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorPage> {
        Ok(Self(KeyPrefix::from_stored(segment(parts, state, "prefix").await?)))
    }
}

async fn number<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> Result<i64, ErrorPage> {
    parse(&segment(parts, state, name).await?).ok_or_else(ErrorPage::not_found)
}

async fn segment<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> Result<String, ErrorPage> {
    let segments = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
    let Path(mut segments) = segments.map_err(|_| ErrorPage::not_found())?;
    segments.remove(name).ok_or_else(ErrorPage::not_found)
}

fn parse(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_path_accepts_integers_only() {
        assert_eq!(parse("1042"), Some(1042));
        assert_eq!(parse("-3"), Some(-3));
        assert_eq!(parse("99999999999999999999999"), Some(i64::MAX));
        for text in ["", "-", "+5", "1e3", "1042.0", " 7", "0x10", "١٢", "new"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
