//! Byte-level byte-pair encoding (`tokenizer.ggml.model = "gpt2"`): words from the pre-tokenizer, each begun as single
//! bytes and joined by the file's merges in their order.

use super::merging::{Join, NO_TOKEN, Symbol, merge};
use super::pre_tokenizer::PreTokenizer;
use super::{Vocabulary, token_type};
use crate::error::Fault;
use crate::gguf::Metadata;
use rustc_hash::FxHashMap;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

pub(super) struct ByteLevel {
    pre_tokenizer: PreTokenizer,
    byte_ids: [u32; 256],
    joins: FxHashMap<u64, Join>,
    /// Whole words that skip the merges, for the families that say so.
    words: FxHashMap<Box<[u8]>, u32>,
}

impl ByteLevel {
    pub(super) fn from_metadata(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Self, Fault> {
        let name = metadata.optional("tokenizer.ggml.pre", Metadata::string)?.unwrap_or("default");
        let pre_tokenizer = PreTokenizer::named(name).ok_or_else(|| {
            Fault::unsupported(format!("the pre-tokenizer `{name}` is not one this engine knows"))
        })?;

        // Only normal tokens are ever made from text, so no spelling of a control token can become one.
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
        let mut joins = FxHashMap::default();
        joins.reserve(merges.len());
        let mut joined = String::new();
        for (priority, merge) in (0_u32..).zip(merges) {
            let wrong =
                || Fault::malformed(format!("the merge `{merge}` is not two tokens that make a third"));
            // A token never holds a plain space, so the first one after the start parts the two.
            let (left, right) = merge.split_once(' ').ok_or_else(wrong)?;
            joined.clear();
            joined.extend([left, right]);
            let (Some(left), Some(right), Some(id)) =
                (ids.get(left), ids.get(right), ids.get(joined.as_str()))
            else {
                return Err(wrong());
            };
            joins.entry(pair(*left, *right)).or_insert(Join { priority, id: *id });
        }

        let words = if pre_tokenizer.takes_whole_words() {
            ids.iter().map(|(text, id)| (bytes_of(text), *id)).collect()
        } else {
            FxHashMap::default()
        };
        Ok(Self { pre_tokenizer, byte_ids, joins, words })
    }

    pub(super) fn adds_bos_by_default(&self) -> bool {
        self.pre_tokenizer.takes_whole_words()
    }

    pub(super) fn append(&self, text: &str, ids: &mut Vec<u32>) {
        if self.pre_tokenizer.composes() && is_nfc_quick(text.chars()) != IsNormalized::Yes {
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
            merge(&mut symbols, |left, right| self.joins.get(&pair(left.id, right.id)).copied());
            ids.extend(symbols.iter().map(|symbol| symbol.id).filter(|id| *id != NO_TOKEN));
        });
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The printable character that stands for a byte in such vocabularies: printable bytes for themselves, the rest
/// moved up from U+0100 in order.
fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=b' ' => moved_up(u32::from(byte)),
        0x7f..=0xa0 => moved_up(33 + u32::from(byte) - 0x7f),
        0xad => moved_up(67),
    }
}

fn moved_up(offset: u32) -> char {
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
            // Not of the alphabet: a token added later, whose text stands for itself.
            None => bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own_that_leads_back() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            let character = char_of(byte);
            assert!(!character.is_whitespace() && seen.insert(character));
            assert_eq!(*bytes_of(&character.to_string()), [byte]);
        }
    }
}
