//! Converts text to token ids and back, with the vocabulary and merges in the model file. A caller's text never becomes
//! a control token, whatever it looks like: only the chat template's own scaffolding is searched for special tokens.

mod bpe;
mod byte_level;
mod pre_tokenizer;
mod sentence_piece;

use crate::error::ModelFileError;
use crate::gguf::{Array, Metadata, Value};
use crate::limits::{MAX_SPECIAL_TOKENS, MAX_VOCAB_SIZE};
use byte_level::ByteLevel;
use rustc_hash::{FxHashMap, FxHashSet};
use sentence_piece::SentencePiece;
use std::fmt;

/// Token types of the GGUF format.
mod token_type {
    pub const NORMAL: i64 = 1;
    pub const UNKNOWN: i64 = 2;
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
    pub const BYTE: i64 = 6;
}

/// Control tokens that end a turn in the supported families, even if no key in the file names them.
const EOG_TOKEN_TEXTS: [&str; 6] =
    ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"];

/// Keys that name an end-of-generation token.
const EOG_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Keys that would change the text before tokenization, or the choice of the next token.
const UNSUPPORTED_FLAGS: [&str; 3] = [
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.normalizer.lowercase",
    "tokenizer.ggml.normalizer.strip_accents",
];
const UNSUPPORTED_LISTS: [&str; 2] =
    ["tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.suppress_tokens"];

/// How much shorter NFC can make a text, in UTF-8 bytes. Its decomposition is at most three times as long as the result (as
/// U+0390 shows), and the text at most three times as long as its decomposition (as the Kelvin sign U+212A shows).
const MAX_NFC_SHRINKAGE: usize = 3 * 3;

enum Algorithm {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
}

pub struct Tokenizer {
    algorithm: Algorithm,
    /// The bytes that each token adds to a reply; control tokens add none.
    token_bytes: Vec<Box<[u8]>>,
    /// Control and user-defined tokens by their text. User-defined ones are recognised in scaffolding only, because a
    /// file may mark its turns with them.
    specials: FxHashMap<String, u32>,
    /// Distinct byte lengths of the special tokens, longest first.
    special_lengths: Vec<usize>,
    eog_tokens: FxHashSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    bos_eos: BosEos,
}

/// The texts that chat templates know as `bos_token` and `eos_token`.
#[derive(Clone, Debug, Default)]
pub struct BosEos {
    pub bos: String,
    pub eos: String,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, ModelFileError> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        if tokens.is_empty() {
            return Err(ModelFileError::malformed("empty vocabulary"));
        }
        if tokens.len() > MAX_VOCAB_SIZE {
            return Err(ModelFileError::unsupported(format!(
                "vocabulary of {} tokens; at most {MAX_VOCAB_SIZE} are supported",
                tokens.len()
            )));
        }
        let types = metadata.integers("tokenizer.ggml.token_type")?;
        if types.len() != tokens.len() {
            return Err(ModelFileError::malformed(format!(
                "{} tokens but {} token types",
                tokens.len(),
                types.len()
            )));
        }
        let known = token_type::NORMAL..=token_type::BYTE;
        if let Some(other) = types.iter().find(|kind| !known.contains(kind)) {
            return Err(ModelFileError::malformed(format!("unknown token type {other}")));
        }
        let vocabulary = Vocabulary { tokens, types };
        ensure_supported_normalization(metadata)?;

        let (algorithm, default_add_bos) = match metadata.string("tokenizer.ggml.model")? {
            "gpt2" => {
                let byte_level = ByteLevel::from_metadata(metadata, &vocabulary)?;
                let add_bos = byte_level.adds_bos_by_default();
                (Algorithm::ByteLevel(byte_level), add_bos)
            }
            "llama" => (Algorithm::SentencePiece(SentencePiece::from_metadata(metadata, &vocabulary)?), true),
            other => {
                return Err(ModelFileError::unsupported(format!("tokenizer `{other}`")));
            }
        };
        let token_bytes = (0..tokens.len())
            .map(|id| match types[id] {
                token_type::CONTROL | token_type::UNKNOWN | token_type::UNUSED => Box::default(),
                token_type::USER_DEFINED => tokens[id].as_bytes().into(),
                _ => match &algorithm {
                    Algorithm::ByteLevel(_) => byte_level::bytes_of(&tokens[id]),
                    Algorithm::SentencePiece(_) => sentence_piece::bytes_of(&tokens[id], types[id]),
                },
            })
            .collect();

        let id_of = |key: &str| -> Result<Option<u32>, ModelFileError> {
            match metadata.optional(key, Metadata::u64)? {
                None => Ok(None),
                Some(id) => {
                    u32::try_from(id).ok().filter(|id| (*id as usize) < tokens.len()).map(Some).ok_or_else(
                        || ModelFileError::malformed(format!("`{key}` is {id}, outside the vocabulary")),
                    )
                }
            }
        };
        let bos = id_of("tokenizer.ggml.bos_token_id")?;
        let eos = id_of("tokenizer.ggml.eos_token_id")?;
        let mut eog_tokens = FxHashSet::default();
        for key in EOG_KEYS {
            eog_tokens.extend(id_of(key)?);
        }
        eog_tokens.extend(
            vocabulary
                .iter()
                .filter(|(_, text, kind)| *kind == token_type::CONTROL && EOG_TOKEN_TEXTS.contains(text))
                .map(|(id, _, _)| id),
        );
        if eog_tokens.is_empty() {
            return Err(ModelFileError::malformed(
                "no end-of-generation token (`tokenizer.ggml.eos_token_id`)",
            ));
        }

        let specials: FxHashMap<String, u32> = vocabulary
            .iter()
            .filter(|(_, text, kind)| {
                [token_type::CONTROL, token_type::USER_DEFINED].contains(kind) && !text.is_empty()
            })
            .map(|(id, text, _)| (text.to_owned(), id))
            .collect();
        if specials.len() > MAX_SPECIAL_TOKENS {
            return Err(ModelFileError::unsupported(format!(
                "vocabulary has {} special tokens",
                specials.len()
            )));
        }
        let mut special_lengths: Vec<usize> = specials.keys().map(String::len).collect();
        special_lengths.sort_unstable_by(|a, b| b.cmp(a));
        special_lengths.dedup();

        let text_of = |id: Option<u32>| id.map(|id| tokens[id as usize].clone()).unwrap_or_default();
        Ok(Self {
            algorithm,
            token_bytes,
            specials,
            special_lengths,
            eog_tokens,
            bos,
            eos,
            add_bos: metadata
                .optional("tokenizer.ggml.add_bos_token", Metadata::bool)?
                .unwrap_or(default_add_bos),
            bos_eos: BosEos { bos: text_of(bos), eos: text_of(eos) },
        })
    }

    pub fn vocab_size(&self) -> usize {
        self.token_bytes.len()
    }

    /// Tokenizes a text on its own, as it is billed. Nothing in it becomes a special token. Bytes that the vocabulary
    /// cannot express are dropped, as the published tokenizers do.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.append_text(text, true, &mut ids);
        ids
    }

    /// Tokenizes a text that follows other text: no space is prefixed.
    pub(crate) fn encode_continuation(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.append_text(text, false, &mut ids);
        ids
    }

    /// Whether a text has the same tokens in any context.
    pub(crate) fn is_context_free(&self) -> bool {
        matches!(self.algorithm, Algorithm::ByteLevel(_))
    }

    /// Whether a space is prefixed to a text that stands on its own.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        match &self.algorithm {
            Algorithm::ByteLevel(_) => false,
            Algorithm::SentencePiece(sentence_piece) => sentence_piece.adds_space_prefix(),
        }
    }

    /// The most bytes of a text that one token can stand for, normalization included. Some vocabularies cannot express a few
    /// bytes, mostly of control characters, and drop them; those are left out here.
    pub fn max_bytes_per_token(&self) -> usize {
        match &self.algorithm {
            Algorithm::ByteLevel(byte_level) => byte_level.max_bytes_per_token(),
            Algorithm::SentencePiece(sentence_piece) => sentence_piece.max_bytes_per_token(),
        }
    }

    fn append_text(&self, text: &str, at_start: bool, ids: &mut Vec<u32>) {
        match &self.algorithm {
            Algorithm::ByteLevel(byte_level) => byte_level.append(text, ids),
            Algorithm::SentencePiece(sentence_piece) => sentence_piece.append(text, at_start, ids),
        }
    }

    /// Tokenizes the chat template's own text, with special tokens recognised. `after_special` says whether a special
    /// token, or nothing, precedes it.
    pub(crate) fn encode_scaffolding(&self, text: &str, after_special: bool) -> EncodedScaffolding {
        let mut ids = Vec::new();
        let mut after_special = after_special;
        let mut plain_from = 0;
        let mut at = 0;
        while at < text.len() {
            let special = self.special_lengths.iter().find_map(|len| {
                let candidate = text.get(at..at + len)?;
                self.specials.get(candidate).map(|id| (*len, *id))
            });
            match special {
                Some((len, id)) => {
                    self.append_plain(&text[plain_from..at], after_special, &mut ids);
                    ids.push(id);
                    at += len;
                    plain_from = at;
                    after_special = true;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        let rest = &text[plain_from..];
        self.append_plain(rest, after_special, &mut ids);
        EncodedScaffolding { ids, ends_with_special: rest.is_empty() && after_special }
    }

    /// Text that already starts with a space gets no second one.
    fn append_plain(&self, text: &str, after_special: bool, ids: &mut Vec<u32>) {
        if !text.is_empty() {
            self.append_text(text, after_special && !text.starts_with(' '), ids);
        }
    }

    /// The bytes that a generated token adds to a reply, possibly only part of a character. Control tokens add none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.token_bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    pub fn is_eog(&self, id: u32) -> bool {
        self.eog_tokens.contains(&id)
    }

    pub(crate) fn leading_bos(&self) -> Option<u32> {
        self.bos.filter(|_| self.add_bos)
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    pub(crate) fn bos_eos(&self) -> &BosEos {
        &self.bos_eos
    }
}

/// Rejects options that these tokenizers do not implement.
fn ensure_supported_normalization(metadata: &Metadata) -> Result<(), ModelFileError> {
    for key in UNSUPPORTED_FLAGS {
        if metadata.optional(key, Metadata::bool)?.unwrap_or(false) {
            return Err(ModelFileError::unsupported(format!("tokenizer option `{key}`")));
        }
    }
    match UNSUPPORTED_LISTS.into_iter().find(|key| metadata.get(key).is_some_and(is_filled)) {
        None => Ok(()),
        Some(key) => Err(ModelFileError::unsupported(format!("tokenizer option `{key}`"))),
    }
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(Array::Integers(items)) => !items.is_empty(),
        _ => true,
    }
}

pub(crate) struct EncodedScaffolding {
    pub(crate) ids: Vec<u32>,
    /// Whether the following text comes directly after a special token.
    pub(crate) ends_with_special: bool,
}

struct Vocabulary<'a> {
    tokens: &'a [String],
    types: &'a [i64],
}

impl<'a> Vocabulary<'a> {
    fn iter(&self) -> impl Iterator<Item = (u32, &'a str, i64)> {
        let ids = 0_u32..;
        ids.zip(self.tokens).zip(self.types).map(|((id, text), kind)| (id, text.as_str(), *kind))
    }
}
