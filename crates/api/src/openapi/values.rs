//! Schemas of fields and headers whose allowed values come from a domain type.

use super::described_as;
use chancery_domain::IdempotencyKey;
use chancery_store::UsageBy;
use serde_json::json;

/// Schemas are named after their types in the OpenAPI document, so this one shares its name with the domain's type.
pub(crate) struct StopReason;
pub(crate) struct UsageGrouping;
/// A list that exists only because OpenAI's clients expect it. It is always empty.
pub(crate) struct EmptyList;
/// The `Idempotency-Key` header.
pub(crate) struct IdempotencyKeySchema;

described_as!(
    StopReason => json!({
        "type": "string",
        "enum": chancery_domain::StopReason::ALL.map(chancery_domain::StopReason::as_str),
        "description": "Why the reply ended: `complete` where the model ended it; `max_output_tokens` where the cap cut it short; \
             `stop_sequence` where one of the `stop` strings came; `context_length` where the model's context was full; `cancelled` where the caller hung up, which only a replay can tell; \
             `deadline` where the server's time limit ended it; `content_filter` where an upstream server's filter ended it; \
             `repetition` where the reply only repeated itself and the request has `stop_on_repetition: true`.",
    }),
    UsageGrouping => json!({
        "type": "string",
        "enum": UsageBy::FOR_ONE_ACCOUNT.map(UsageBy::as_str),
        "description": "What usage is summed by.",
    }),
    EmptyList => json!({ "type": "array", "items": false, "maxItems": 0, "description": "Always empty." }),
    IdempotencyKeySchema => json!({
        "type": "string",
        "minLength": 1,
        "maxLength": IdempotencyKey::MAX_LENGTH,
        // Visible ASCII without spaces.
        "pattern": "^[!-~]+$",
        "description": "Your own name for a request: visible ASCII, without spaces.",
    }),
);

#[cfg(test)]
mod tests {
    use super::*;
    use utoipa::PartialSchema;

    #[test]
    fn idempotency_key_schema_matches_the_header_parser() {
        let schema = serde_json::to_value(IdempotencyKeySchema::schema()).unwrap();
        assert_eq!(schema["pattern"], "^[!-~]+$");
        let takes = |text: &str| text.parse::<IdempotencyKey>().is_ok();
        let ascii = (0..=127_u8).map(char::from);
        for character in ascii.chain(['é', '\u{a0}']) {
            assert_eq!(takes(&character.to_string()), ('!'..='~').contains(&character), "{character:?}");
        }
        let longest = schema["maxLength"].as_u64().unwrap() as usize;
        assert!(takes(&"k".repeat(longest)) && !takes(&"k".repeat(longest + 1)) && !takes(""));
    }
}
