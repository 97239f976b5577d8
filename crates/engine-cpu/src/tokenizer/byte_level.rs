//! Byte-level byte-pair encoding (`tokenizer.ggml.model = "gpt2"`): each word of the pre-tokenizer starts as single
//! bytes, which the file's merges join in order of priority.

use super::bpe::{Merge, NO_TOKEN, Symbol, merge};
use super::pre_tokenizer::PreTokenizer;
use super::{MAX_NFC_SHRINKAGE, Vocabulary, token_type};
use crate::error::ModelFileError;
use crate::gguf::Metadata;
use rustc_hash::FxHashMap;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

pub(super) struct ByteLevel {
    pre_tokenizer: PreTokenizer,
    byte_ids: [u32; 256],
    /// In bytes of the text.
    longest_token: usize,
    merge_ranks: FxHashMap<u64, Merge>,
    /// Whole words that skip the merges, for the families that do so.
    words: FxHashMap<Box<[u8]>, u32>,
}

impl ByteLevel {
    pub(super) fn from_metadata(
        metadata: &Metadata,
        vocabulary: &Vocabulary<'_>,
    ) -> Result<Self, ModelFileError> {
        let name = metadata.optional("tokenizer.ggml.pre", Metadata::string)?.unwrap_or("default");
        let pre_tokenizer = PreTokenizer::from_name(name)
            .ok_or_else(|| ModelFileError::unsupported(format!("pre-tokenizer `{name}`")))?;

        // Text only ever produces normal tokens, so no spelling of a control token can become one.
        let ids: FxHashMap<&str, u32> = vocabulary
            .iter()
            .filter(|(_, _, kind)| *kind == token_type::NORMAL)
            .map(|(id, text, _)| (text, id))
            .collect();
        let mut byte_ids = [NO_TOKEN; 256];
        for (byte, id) in (0_u8..=255).zip(&mut byte_ids) {
            let mut buffer = [0; 4];
            *id = ids.get(&*char_of(byte).encode_utf8(&mut buffer)).copied().unwrap_or(NO_TOKEN);
        }

        let merges = metadata.strings("tokenizer.ggml.merges")?;
        let mut merge_ranks = FxHashMap::default();
        merge_ranks.reserve(merges.len());
        let mut joined = String::new();
        for (priority, merge) in (0_u32..).zip(merges) {
            let malformed_merge = || {
                ModelFileError::malformed(format!(
                    "the merge `{merge}` does not combine two tokens into a third"
                ))
            };
            // A token never contains a plain space, so the first space separates the two.
            let (left, right) = merge.split_once(' ').ok_or_else(malformed_merge)?;
            joined.clear();
            joined.extend([left, right]);
            let (Some(left), Some(right), Some(id)) =
                (ids.get(left), ids.get(right), ids.get(joined.as_str()))
            else {
                return Err(malformed_merge());
            };
            merge_ranks.entry(pair(*left, *right)).or_insert(Merge { priority, id: *id });
        }

        let longest_token = ids.keys().map(|text| bytes_of(text).len()).max().unwrap_or(0);
        let words = if pre_tokenizer.ignores_merges() {
            ids.iter().map(|(text, id)| (bytes_of(text), *id)).collect()
        } else {
            FxHashMap::default()
        };
        Ok(Self { pre_tokenizer, byte_ids, longest_token, merge_ranks, words })
    }

    pub(super) fn adds_bos_by_default(&self) -> bool {
        self.pre_tokenizer.ignores_merges()
    }

    pub(super) fn max_bytes_per_token(&self) -> usize {
        let shrinkage = if self.pre_tokenizer.normalizes_nfc() { MAX_NFC_SHRINKAGE } else { 1 };
        self.longest_token.saturating_mul(shrinkage)
    }

    pub(super) fn append(&self, text: &str, ids: &mut Vec<u32>) {
        if self.pre_tokenizer.normalizes_nfc() && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            self.append_words(&text.nfc().collect::<String>(), ids);
        } else {
            self.append_words(text, ids);
        }
    }

    fn append_words(&self, text: &str, ids: &mut Vec<u32>) {
        let mut symbols = Vec::new();
        self.pre_tokenizer.split(text, &mut |word| {
            if let Some(id) = self.words.get(word.as_bytes()) {
                ids.push(*id);
                return;
            }
            symbols.clear();
            symbols.extend((0_u32..).zip(word.bytes()).map(|(start, byte)| Symbol {
                start,
                len: 1,
                id: self.byte_ids[usize::from(byte)],
            }));
            merge(&mut symbols, |left, right| self.merge_ranks.get(&pair(left.id, right.id)).copied());
            ids.extend(symbols.iter().map(|symbol| symbol.id).filter(|id| *id != NO_TOKEN));
        });
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The printable character that stands for a byte in these vocabularies: printable bytes stand for themselves, the rest
/// map to U+0100 and up, in order.
fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=b' ' => remapped_char(u32::from(byte)),
        0x7f..=0xa0 => remapped_char(33 + u32::from(byte) - 0x7f),
        0xad => remapped_char(67),
    }
}

fn remapped_char(offset: u32) -> char {
    char::from_u32(0x100 + offset).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that a token's text stands for.
pub(super) fn bytes_of(text: &str) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        let byte = match u32::from(character) {
            offset @ 0x100..=0x120 => Some(offset - 0x100),
            offset @ 0x121..=0x142 => Some(offset - 0x121 + 0x7f),
            0x143 => Some(0xad),
            code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code),
            _ => None,
        };
        match byte.and_then(|byte| u8::try_from(byte).ok()) {
            Some(byte) => bytes.push(byte),
            // Outside the byte alphabet: a token added later, whose text stands for itself.
            None => bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_to_character_mapping_is_invertible() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            let character = char_of(byte);
            assert!(!character.is_whitespace() && seen.insert(character));
            assert_eq!(*bytes_of(&character.to_string()), [byte]);
        }
    }
}
