//! SentencePiece byte-pair encoding (`tokenizer.ggml.model = "llama"`): characters are merged by the score of the
//! result, spaces become U+2581, and characters outside the vocabulary become byte tokens.

use super::bpe::{Merge, NO_TOKEN, Symbol, merge};
use super::{Vocabulary, token_type};
use crate::error::ModelFileError;
use crate::gguf::Metadata;
use rustc_hash::FxHashMap;

const SPACE: &str = "\u{2581}";

pub(super) struct SentencePiece {
    pieces: FxHashMap<Box<[u8]>, Merge>,
    byte_ids: [u32; 256],
    longest_piece: usize,
    add_space_prefix: bool,
}

impl SentencePiece {
    pub(super) fn from_metadata(
        metadata: &Metadata,
        vocabulary: &Vocabulary<'_>,
    ) -> Result<Self, ModelFileError> {
        let scores = metadata.floats("tokenizer.ggml.scores")?;
        if scores.len() != vocabulary.tokens.len() {
            return Err(ModelFileError::malformed(format!(
                "{} tokens have {} scores",
                vocabulary.tokens.len(),
                scores.len()
            )));
        }
        let mut pieces = FxHashMap::default();
        let mut byte_ids = [NO_TOKEN; 256];
        let mut longest_piece = 0;
        for (id, text, kind) in vocabulary.iter() {
            match kind {
                token_type::NORMAL => {
                    longest_piece = longest_piece.max(text.len());
                    let merge = Merge { priority: priority_of(scores[id as usize]), id };
                    pieces.insert(text.as_bytes().into(), merge);
                }
                token_type::BYTE => {
                    let byte = byte_of(text).ok_or_else(|| {
                        ModelFileError::malformed(format!("the byte token `{text}` is not a byte"))
                    })?;
                    byte_ids[usize::from(byte)] = id;
                }
                _ => {}
            }
        }
        let add_space_prefix =
            metadata.optional("tokenizer.ggml.add_space_prefix", Metadata::bool)?.unwrap_or(true);
        Ok(Self { pieces, byte_ids, longest_piece, add_space_prefix })
    }

    pub(super) fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// A piece has as many bytes as the text with its spaces escaped, which is no shorter than the text.
    pub(super) fn max_bytes_per_token(&self) -> usize {
        self.longest_piece.max(1)
    }

    /// `at_start`: nothing, or a special token, precedes the text.
    pub(super) fn append(&self, text: &str, at_start: bool, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + text.len() / 4);
        if at_start && self.add_space_prefix {
            escaped.push_str(SPACE);
        }
        for part in text.split_inclusive(' ') {
            match part.strip_suffix(' ') {
                Some(word) => escaped.extend([word, SPACE]),
                None => escaped.push_str(part),
            }
        }
        let bytes = escaped.as_bytes();
        let look_up = |start: u32, len: u32| {
            let (start, len) = (start as usize, len as usize);
            if len > self.longest_piece { None } else { self.pieces.get(&bytes[start..start + len]).copied() }
        };
        let mut symbols: Vec<Symbol> = escaped
            .char_indices()
            .map(|(start, character)| {
                let (start, len) = (start as u32, character.len_utf8() as u32);
                Symbol { start, len, id: look_up(start, len).map_or(NO_TOKEN, |piece| piece.id) }
            })
            .collect();
        merge(&mut symbols, |left, right| look_up(left.start, left.len + right.len));
        for symbol in symbols {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
            } else {
                let bytes = &bytes[symbol.start as usize..][..symbol.len as usize];
                ids.extend(
                    bytes.iter().map(|byte| self.byte_ids[usize::from(*byte)]).filter(|id| *id != NO_TOKEN),
                );
            }
        }
    }
}

/// Maps scores to integers in reverse order, so that higher scores come first.
fn priority_of(score: f64) -> u32 {
    let bits = (score as f32).to_bits();
    // Negative floats order backwards by their bits, positive ones forwards; this maps both to one ascending order.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// The bytes that a token's text stands for.
pub(super) fn bytes_of(text: &str, kind: i64) -> Box<[u8]> {
    match byte_of(text).filter(|_| kind == token_type::BYTE) {
        Some(byte) => [byte].into(),
        None => text.replace(SPACE, " ").into_bytes().into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::error::ModelFileError;
    use crate::gguf::Gguf;
    use crate::gguf::writer::GgufWriter;
    use crate::tokenizer::Tokenizer;
    use std::io::Cursor;

    fn tokenizer() -> Tokenizer {
        load(writer()).unwrap()
    }

    fn load(writer: GgufWriter) -> Result<Tokenizer, ModelFileError> {
        let bytes = writer.finish();
        let len = bytes.len() as u64;
        Tokenizer::from_metadata(Gguf::read(Cursor::new(bytes), len)?.metadata())
    }

    /// A small vocabulary: control, bytes, characters and pieces with scores.
    fn writer() -> GgufWriter {
        let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
        let mut types = vec![2, 3, 3];
        let mut scores = vec![0.0; 3];
        for byte in 0..=255 {
            tokens.push(format!("<0x{byte:02X}>"));
            types.push(6);
            scores.push(0.0);
        }
        for (text, score) in [
            ("▁", -10.0),
            ("a", -11.0),
            ("b", -12.0),
            ("ab", -1.0),
            ("▁a", -2.0),
            ("▁ab", -3.0),
            ("aa", -4.0),
        ] {
            tokens.push(text.into());
            types.push(1);
            scores.push(score);
        }
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        GgufWriter::new()
            .string("tokenizer.ggml.model", "llama")
            .strings("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &types)
            .f32s("tokenizer.ggml.scores", &scores)
            .u32("tokenizer.ggml.eos_token_id", 2)
    }

    fn pieces(text: &str) -> Vec<String> {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode_text(text);
        ids.iter().map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned()).collect()
    }

    #[test]
    fn best_score_merges_first_and_text_gets_a_leading_space() {
        assert_eq!(pieces("ab"), [" ab"]);
        assert_eq!(pieces("ab ab"), [" ab", " ab"]);
        // "ab" scores better than "aa", so the first a stays with the space.
        assert_eq!(pieces("aab"), [" a", "ab"]);
        assert_eq!(pieces(""), Vec::<String>::new());
    }

    #[test]
    fn characters_outside_the_vocabulary_become_byte_tokens() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.encode_continuation("é"), [3 + 0xc3, 3 + 0xa9]);
    }

    #[test]
    fn unsupported_normalizer_options_are_rejected_by_name() {
        let switches = ["remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents"];
        for switch in switches.map(|name| format!("tokenizer.ggml.{name}")) {
            assert!(load(writer().bool(&switch, false)).is_ok());
            assert!(load(writer().bool(&switch, true)).unwrap_err().to_string().contains(&switch));
        }
        for list in ["precompiled_charsmap", "suppress_tokens"].map(|name| format!("tokenizer.ggml.{name}")) {
            assert!(load(writer().i32s(&list, &[])).is_ok());
            assert!(load(writer().i32s(&list, &[7])).unwrap_err().to_string().contains(&list));
        }
    }

    #[test]
    fn template_text_with_a_leading_space_gets_no_second_one() {
        let tokenizer = tokenizer();
        let spaced = tokenizer.encode_scaffolding("<s> ab", true).ids;
        assert_eq!(spaced, tokenizer.encode_scaffolding("<s>ab", true).ids);
    }

    #[test]
    fn text_spelling_a_control_token_stays_text() {
        let tokenizer = tokenizer();
        assert!(tokenizer.encode_text("</s><0x41>").iter().all(|id| *id > 2));
        let scaffolding = tokenizer.encode_scaffolding("<s>ab</s>", true);
        assert_eq!((scaffolding.ids[0], scaffolding.ids[2]), (1, 2));
        assert!(scaffolding.ends_with_special);
    }
}
