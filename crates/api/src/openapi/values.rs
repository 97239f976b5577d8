//! What fields and headers take that have a type of their own, told by that type.

use chancery_domain::{HowEnded, IdempotencyKey};
use chancery_store::UsageBy;
use utoipa::openapi::schema::{ArrayBuilder, ArrayItems, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

pub(crate) struct StopReason;

impl ToSchema for StopReason {}

impl PartialSchema for StopReason {
    fn schema() -> RefOr<Schema> {
        one_of(
            HowEnded::ALL.into_iter().map(HowEnded::as_str),
            "Why the reply ended: `complete` where the model ended it; `max_output_tokens` where the cap cut it short; \
             `stop_sequence` where one of the `stop` strings came; `context_length` where the model's context was full; `cancelled` where the caller hung up, which only a replay can tell.",
        )
    }
}

pub(crate) struct UsageGrouping;

impl ToSchema for UsageGrouping {}

impl PartialSchema for UsageGrouping {
    fn schema() -> RefOr<Schema> {
        one_of(UsageBy::OF_ONE_ACCOUNT.into_iter().map(UsageBy::as_str), "What usage is summed by.")
    }
}

/// A list that is there for those who look for it, with nothing in it.
pub(crate) struct EmptyList;

impl ToSchema for EmptyList {}

impl PartialSchema for EmptyList {
    fn schema() -> RefOr<Schema> {
        ArrayBuilder::new()
            .items(ArrayItems::False)
            .max_items(Some(0))
            .description(Some("Always empty."))
            .into()
    }
}

/// The header `Idempotency-Key`.
pub(crate) struct RequestName;

impl ToSchema for RequestName {}

impl PartialSchema for RequestName {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(IdempotencyKey::MAX_LENGTH))
            // Visible ASCII, without spaces.
            .pattern(Some("^[!-~]+$"))
            .description(Some("Your own name for a request: visible ASCII, without spaces."))
            .into()
    }
}

fn one_of(words: impl Iterator<Item = &'static str>, meaning: &str) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).description(Some(meaning)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_requests_name_allows_what_the_header_takes() {
        let RefOr::T(Schema::Object(schema)) = RequestName::schema() else { panic!("an object") };
        assert_eq!(schema.pattern.as_deref(), Some("^[!-~]+$"));
        let takes = |text: &str| text.parse::<IdempotencyKey>().is_ok();
        let ascii = (0..=127_u8).map(char::from);
        for character in ascii.chain(['é', '\u{a0}']) {
            assert_eq!(takes(&character.to_string()), ('!'..='~').contains(&character), "{character:?}");
        }
        let longest = schema.max_length.unwrap();
        assert!(takes(&"k".repeat(longest)) && !takes(&"k".repeat(longest + 1)) && !takes(""));
    }
}
