//! What a key may use, next to the limits of its account.

use crate::{Day, Nanos, RateLimits, UnixMillis};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The limits of one key. `None` means that only the account's limit holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    pub requests_per_min: Option<u32>,
    pub tokens_per_min: Option<u32>,
    /// For each calendar month (UTC).
    pub spend_per_month: Option<Nanos>,
    pub models: Option<AllowedModels>,
    /// The key is invalid from this moment on.
    pub expires_at: Option<UnixMillis>,
}

impl KeyLimits {
    pub fn allows_model(&self, name: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(name))
    }

    /// The limits per minute, if it has any. One that is not set cannot be reached.
    pub fn rate_limits(&self) -> Option<RateLimits> {
        match (self.requests_per_min, self.tokens_per_min) {
            (None, None) => None,
            (requests, tokens) => Some(RateLimits {
                requests_per_min: requests.unwrap_or(u32::MAX),
                tokens_per_min: tokens.unwrap_or(u32::MAX),
            }),
        }
    }

    pub fn is_expired(&self, now: UnixMillis) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

/// The last day on which a key can expire. The end of any later one cannot be written as a timestamp.
const LAST_EXPIRY_DAY: Day = Day(2_932_894);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpiryError {
    #[error("use a day such as 2027-06-30, or a time such as 2027-06-30T09:30:00Z")]
    NotATime,
    #[error("use a day from 1970-01-01 to {LAST_EXPIRY_DAY}")]
    OutOfRange,
}

/// Reads when a key expires. A day includes all of it.
pub fn parse_expiry(text: &str) -> Result<UnixMillis, ExpiryError> {
    let at = match text.parse::<Day>() {
        Ok(day) => day.end(),
        Err(_) => text.parse::<UnixMillis>().map_err(|_| ExpiryError::NotATime)?,
    };
    let is_in_range = (UnixMillis(0)..=LAST_EXPIRY_DAY.end()).contains(&at);
    if is_in_range { Ok(at) } else { Err(ExpiryError::OutOfRange) }
}

closed_enum! {
    /// Whose limit it is.
    pub enum LimitScope {
        Account = "account",
        Key = "key",
    }
}

/// The models that a key may use: at least one name, sorted, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedModels(Arc<[String]>);

/// Maximum length of a list of models, as text.
pub const MAX_ALLOWED_MODELS_CHARS: usize = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowedModelsError {
    #[error("name at least one model; separate several with commas, such as A,B")]
    Empty,
    #[error("a list of models has at most {MAX_ALLOWED_MODELS_CHARS} characters, and none is invisible")]
    NotAList,
}

impl AllowedModels {
    pub fn contains(&self, name: &str) -> bool {
        self.0.binary_search_by(|model| model.as_str().cmp(name)).is_ok()
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }
}

/// Names separated by commas. Models are configured on each server, so an unknown name is not an error.
impl FromStr for AllowedModels {
    type Err = AllowedModelsError;

    fn from_str(text: &str) -> Result<Self, AllowedModelsError> {
        if text.chars().count() > MAX_ALLOWED_MODELS_CHARS || text.chars().any(char::is_control) {
            return Err(AllowedModelsError::NotAList);
        }
        let mut names: Vec<String> =
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        if names.is_empty() { Err(AllowedModelsError::Empty) } else { Ok(Self(names.into())) }
    }
}

/// As `FromStr` reads it.
impl fmt::Display for AllowedModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(text: &str) -> Result<AllowedModels, AllowedModelsError> {
        text.parse()
    }

    #[test]
    fn every_accepted_expiry_can_be_written_as_a_timestamp() {
        assert_eq!(LAST_EXPIRY_DAY.to_string(), "9999-12-29");
        for (text, expected) in [
            ("2027-06-30", Ok("2027-07-01T00:00:00.000Z")),
            ("2027-06-30T09:30:00Z", Ok("2027-06-30T09:30:00.000Z")),
            ("1970-01-01", Ok("1970-01-02T00:00:00.000Z")),
            ("9999-12-29", Ok("9999-12-30T00:00:00.000Z")),
            ("9999-12-30", Err(ExpiryError::OutOfRange)),
            ("9999-12-31", Err(ExpiryError::OutOfRange)),
            ("0001-01-01", Err(ExpiryError::OutOfRange)),
            ("soon", Err(ExpiryError::NotATime)),
        ] {
            let read = parse_expiry(text).map(UnixMillis::to_iso);
            assert_eq!(read.as_deref(), expected.as_ref().copied(), "{text}");
        }
        assert_eq!(ExpiryError::OutOfRange.to_string(), "use a day from 1970-01-01 to 9999-12-29");
    }

    #[test]
    fn model_list_ignores_order_spaces_and_duplicates() {
        let list = models(" b, a,b,,").unwrap();
        assert_eq!(list.to_string(), "a,b");
        assert_eq!(models(&list.to_string()), Ok(list.clone()));
        assert!(list.contains("a") && list.contains("b"));
        assert!(!list.contains("") && !list.contains("ab"));
    }

    #[test]
    fn empty_or_overlong_model_list_is_rejected() {
        for text in ["", " ", ",,"] {
            assert_eq!(models(text), Err(AllowedModelsError::Empty));
        }
        assert_eq!(models("a\nb"), Err(AllowedModelsError::NotAList));
        assert_eq!(models(&"a,".repeat(MAX_ALLOWED_MODELS_CHARS)), Err(AllowedModelsError::NotAList));
    }

    #[test]
    fn key_without_limits_allows_every_model_and_never_expires() {
        let limits = KeyLimits::default();
        assert!(limits.allows_model("any") && !limits.is_expired(UnixMillis(i64::MAX)));
        let limits = KeyLimits {
            models: Some(models("a").unwrap()),
            expires_at: Some(UnixMillis(5)),
            ..KeyLimits::default()
        };
        assert!(limits.allows_model("a") && !limits.allows_model("b"));
        assert!(!limits.is_expired(UnixMillis(4)) && limits.is_expired(UnixMillis(5)));
    }
}
