//! How tokens are counted for a model that runs elsewhere: by its `tokenizer.json`, which gives the same count as the
//! embedded engine's rule (every text on its own, nothing in it taken for a special token), or else by what the server says.

use super::limits::{MAX_TOKENIZER_BYTES, MAX_UNCUT_BYTES};
use chancery_engine::{EngineError, Turn};
use serde_json::Value;
use std::path::Path;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

/// A `tokenizer.json` cannot be used; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(String);

/// The model's own tokenizer.
pub struct TokenCounter {
    tokenizer: Tokenizer,
    /// Whether texts are cut by a regular expression, which may give up on one.
    cuts_by_pattern: bool,
}

impl TokenCounter {
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let unreadable =
            |error: &dyn std::fmt::Display| TokenizerError(format!("{}: {error}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
        if size > MAX_TOKENIZER_BYTES {
            return Err(unreadable(&format!("it has more than {MAX_TOKENIZER_BYTES} bytes")));
        }
        let text = std::fs::read(path).map_err(|error| unreadable(&error))?;
        let mut description: Value = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
        mark_all_added_tokens(&mut description);
        let cuts_by_pattern =
            has_pattern(&description["pre_tokenizer"]) || has_pattern(&description["normalizer"]);
        let mut tokenizer =
            Tokenizer::from_bytes(description.to_string()).map_err(|error| unreadable(&error))?;
        tokenizer.set_encode_special_tokens(true);
        // What is counted is all of a text, and nothing but it.
        tokenizer.with_truncation(None).map_err(|error| unreadable(&error))?;
        tokenizer.with_padding(None);
        Ok(Self { tokenizer, cuts_by_pattern })
    }

    pub fn count(&self, text: &str) -> Result<u32, EngineError> {
        if text.is_empty() {
            return Ok(0);
        }
        if self.cuts_by_pattern && text.len() > MAX_UNCUT_BYTES {
            self.refuse_what_cannot_be_cut(text)?;
        }
        let encoding = self.tokenizer.encode_fast(text, false).map_err(|error| failed(&error))?;
        Ok(u32::try_from(encoding.len()).unwrap_or(u32::MAX))
    }

    /// The library says nothing where its regular expressions give up: it goes on as if the rest of the text were one word,
    /// and the count would be another than the model's. So whatever looks like that is refused.
    fn refuse_what_cannot_be_cut(&self, text: &str) -> Result<(), EngineError> {
        let Some(cutter) = self.tokenizer.get_pre_tokenizer() else { return Ok(()) };
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer.normalize(&mut normalized).map_err(|error| failed(&error))?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        cutter.pre_tokenize(&mut pieces).map_err(|error| failed(&error))?;
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let longest = pieces.iter().map(|(_, (start, end), _)| end - start).max().unwrap_or(0);
        match longest > MAX_UNCUT_BYTES {
            true => Err(EngineError::InputRefused {
                reason: Some(format!(
                    "a text has more than {MAX_UNCUT_BYTES} bytes in which this model's tokenizer finds no place to cut; \
                     break it up, or leave long runs of the same character out"
                )),
            }),
            false => Ok(()),
        }
    }
}

fn failed(error: &tokenizers::Error) -> EngineError {
    EngineError::Failed(format!("the tokenizer failed: {error}"))
}

/// Nothing that a caller writes is a token that was added to the vocabulary, be it one that is called special or one that is
/// not, such as `<think>` in many: the embedded engine takes none of them for text either. The library leaves out those
/// that are called special.
fn mark_all_added_tokens(description: &mut Value) {
    let added = description.get_mut("added_tokens").and_then(Value::as_array_mut);
    for token in added.into_iter().flatten() {
        token["special"] = Value::Bool(true);
    }
}

fn has_pattern(part: &Value) -> bool {
    match part {
        Value::Object(fields) => {
            let is_byte_level = fields.get("type").is_some_and(|kind| kind == "ByteLevel");
            fields.contains_key("Regex") || is_byte_level || fields.values().any(has_pattern)
        }
        Value::Array(parts) => parts.iter().any(has_pattern),
        _ => false,
    }
}

/// All turns, each on its own. Without a tokenizer: the most that there can be, for no token has less than a byte of text;
/// one more for each turn, because some tokenizers put a space before a text.
pub(super) fn input_tokens(counter: Option<&TokenCounter>, turns: &[Turn]) -> Result<u32, EngineError> {
    let most = |text: &str| {
        if text.is_empty() { 0 } else { u32::try_from(text.len()).unwrap_or(u32::MAX).saturating_add(1) }
    };
    turns.iter().try_fold(0_u32, |sum, turn| {
        let tokens = match counter {
            Some(counter) => counter.count(&turn.text)?,
            None => most(&turn.text),
        };
        Ok(sum.saturating_add(tokens))
    })
}
