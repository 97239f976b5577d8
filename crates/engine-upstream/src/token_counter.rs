//! Token counting for upstream models. With a `tokenizer.json`, the count follows the same rule as the embedded engine:
//! each text on its own, and nothing in it is parsed as a special token. Without one, the server's count is used.

use super::limits::{MAX_PRETOKEN_BYTES, MAX_TOKENIZER_BYTES};
use super::token_length::max_bytes_per_token;
use chancery_engine::{EngineError, Turn};
use serde_json::Value;
use std::path::Path;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

/// Why a `tokenizer.json` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(String);

pub struct TokenCounter {
    tokenizer: Tokenizer,
    /// Whether texts are split by a regular expression, which may give up on some.
    splits_by_regex: bool,
    max_bytes_per_token: Option<usize>,
}

impl TokenCounter {
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let unreadable =
            |error: &dyn std::fmt::Display| TokenizerError(format!("{}: {error}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
        if size > MAX_TOKENIZER_BYTES {
            return Err(unreadable(&format!("larger than {MAX_TOKENIZER_BYTES} bytes")));
        }
        let text = std::fs::read(path).map_err(|error| unreadable(&error))?;
        let mut description: Value = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
        mark_added_tokens_special(&mut description);
        let splits_by_regex =
            has_regex(&description["pre_tokenizer"]) || has_regex(&description["normalizer"]);
        let max_bytes_per_token = max_bytes_per_token(&description);
        let mut tokenizer =
            Tokenizer::from_bytes(description.to_string()).map_err(|error| unreadable(&error))?;
        tokenizer.set_encode_special_tokens(true);
        // Count exactly the text: no truncation, no padding.
        tokenizer.with_truncation(None).map_err(|error| unreadable(&error))?;
        tokenizer.with_padding(None);
        Ok(Self { tokenizer, splits_by_regex, max_bytes_per_token })
    }

    pub fn count(&self, text: &str) -> Result<u32, EngineError> {
        if text.is_empty() {
            return Ok(0);
        }
        if self.splits_by_regex && text.len() > MAX_PRETOKEN_BYTES {
            self.ensure_pretokenized(text)?;
        }
        let encoding = self.tokenizer.encode_fast(text, false).map_err(|error| failed(&error))?;
        Ok(u32::try_from(encoding.len()).unwrap_or(u32::MAX))
    }

    /// The most bytes of a text that one token can stand for; `None` if there is no known bound.
    pub fn max_bytes_per_token(&self) -> Option<usize> {
        self.max_bytes_per_token
    }

    /// When its regular expressions give up, the library silently treats the rest of the text as one word. The count
    /// would then differ from the model's, so such texts are rejected.
    fn ensure_pretokenized(&self, text: &str) -> Result<(), EngineError> {
        let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() else { return Ok(()) };
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer.normalize(&mut normalized).map_err(|error| failed(&error))?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        pre_tokenizer.pre_tokenize(&mut pieces).map_err(|error| failed(&error))?;
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let longest = pieces.iter().map(|(_, (start, end), _)| end - start).max().unwrap_or(0);
        match longest > MAX_PRETOKEN_BYTES {
            true => Err(EngineError::InputRejected {
                reason: Some(format!(
                    "the text has a run of more than {MAX_PRETOKEN_BYTES} bytes that this model's tokenizer cannot split; \
                     break it up, or remove long runs of the same character"
                )),
            }),
            false => Ok(()),
        }
    }
}

fn failed(error: &tokenizers::Error) -> EngineError {
    EngineError::Failed(format!("tokenizer failed: {error}"))
}

/// Text from callers never becomes an added token, whether marked special or not (such as `<think>` in many
/// vocabularies). The embedded engine follows the same rule. The library skips only tokens marked special, so mark them
/// all.
fn mark_added_tokens_special(description: &mut Value) {
    let added = description.get_mut("added_tokens").and_then(Value::as_array_mut);
    for token in added.into_iter().flatten() {
        token["special"] = Value::Bool(true);
    }
}

fn has_regex(part: &Value) -> bool {
    match part {
        Value::Object(fields) => {
            let is_byte_level = fields.get("type").is_some_and(|kind| kind == "ByteLevel");
            fields.contains_key("Regex") || is_byte_level || fields.values().any(has_regex)
        }
        Value::Array(parts) => parts.iter().any(has_regex),
        _ => false,
    }
}

/// Counts each turn on its own. Without a tokenizer, returns an upper bound: every token has at least one byte of text.
/// One token is added per turn, because some tokenizers put a space before a text.
pub(super) fn input_tokens(counter: Option<&TokenCounter>, turns: &[Turn]) -> Result<u32, EngineError> {
    let upper_bound = |text: &str| {
        if text.is_empty() { 0 } else { u32::try_from(text.len()).unwrap_or(u32::MAX).saturating_add(1) }
    };
    turns.iter().try_fold(0_u32, |sum, turn| {
        let tokens = match counter {
            Some(counter) => counter.count(&turn.text)?,
            None => upper_bound(&turn.text),
        };
        Ok(sum.saturating_add(tokens))
    })
}
