//! How tokens are counted for a model that runs elsewhere: by its `tokenizer.json`, which gives the same count as the
//! embedded engine's rule (every text on its own, nothing in it taken for a special token), or else by what the server says.

use super::limits::MAX_TOKENIZER_BYTES;
use crate::{EngineError, Turn};
use std::path::Path;
use tokenizers::Tokenizer;

/// A `tokenizer.json` cannot be used; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(String);

/// The model's own tokenizer.
pub struct TokenCounter(Tokenizer);

impl TokenCounter {
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let unreadable =
            |error: &dyn std::fmt::Display| TokenizerError(format!("{}: {error}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
        if size > MAX_TOKENIZER_BYTES {
            return Err(unreadable(&format!("it has more than {MAX_TOKENIZER_BYTES} bytes")));
        }
        let mut tokenizer = Tokenizer::from_file(path).map_err(|error| unreadable(&error))?;
        // Callers' text never becomes a special token, and what is counted is all of it.
        tokenizer.set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| unreadable(&error))?;
        tokenizer.with_padding(None);
        Ok(Self(tokenizer))
    }

    pub fn count(&self, text: &str) -> Result<u32, EngineError> {
        if text.is_empty() {
            return Ok(0);
        }
        let failed = |error| EngineError::Failed(format!("the tokenizer failed: {error}"));
        let encoding = self.0.encode_fast(text, false).map_err(failed)?;
        Ok(u32::try_from(encoding.len()).unwrap_or(u32::MAX))
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
