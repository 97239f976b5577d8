//! Text to token ids and back, from the vocabulary and merges in the model file. What a caller wrote never becomes a
//! control token, whatever it looks like: only the chat template's own scaffolding is searched for special tokens.

mod byte_level;
mod merging;
mod pre_tokenizer;
mod sentence_piece;

use crate::error::Fault;
use crate::gguf::{Array, Metadata, Value};
use crate::limits::{MAX_SPECIAL_TOKENS, MAX_VOCABULARY};
use byte_level::ByteLevel;
use rustc_hash::{FxHashMap, FxHashSet};
use sentence_piece::SentencePiece;
use std::fmt;

/// The format's numbers for the types of tokens.
mod token_type {
    pub const NORMAL: i64 = 1;
    pub const UNKNOWN: i64 = 2;
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
    pub const BYTE: i64 = 6;
}

/// Control tokens that end a turn in the families this engine reads, whether or not the file names them by a key.
const END_MARKERS: [&str; 6] =
    ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"];

/// Keys that name a token which ends a turn.
const END_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Keys that change the text before it is tokenized, or the choice of the next token.
const SWITCHES_THAT_MUST_BE_OFF: [&str; 3] = [
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.normalizer.lowercase",
    "tokenizer.ggml.normalizer.strip_accents",
];
const LISTS_THAT_MUST_BE_EMPTY: [&str; 2] =
    ["tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.suppress_tokens"];

enum Algorithm {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
}

pub struct Tokenizer {
    algorithm: Algorithm,
    /// What each token adds to a reply: nothing for control tokens.
    token_bytes: Vec<Box<[u8]>>,
    /// Control and user-defined tokens by their text; user-defined ones are found in scaffolding only, because a
    /// file may well mark its turns with them.
    specials: FxHashMap<String, u32>,
    /// The lengths of the specials' texts in bytes, longest first.
    special_lengths: Vec<usize>,
    end_markers: FxHashSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    texts_of_markers: Markers,
}

/// The texts that chat templates know as `bos_token` and `eos_token`.
#[derive(Clone, Debug, Default)]
pub struct Markers {
    pub bos: String,
    pub eos: String,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary_len", &self.vocabulary_len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Fault> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        if tokens.is_empty() {
            return Err(Fault::malformed("the vocabulary is empty"));
        }
        if tokens.len() > MAX_VOCABULARY {
            return Err(Fault::unsupported(format!(
                "the vocabulary has {} tokens, and this engine holds {MAX_VOCABULARY} at most",
                tokens.len()
            )));
        }
        let types = metadata.integers("tokenizer.ggml.token_type")?;
        if types.len() != tokens.len() {
            return Err(Fault::malformed(format!("{} tokens have {} types", tokens.len(), types.len())));
        }
        let known = token_type::NORMAL..=token_type::BYTE;
        if let Some(other) = types.iter().find(|kind| !known.contains(kind)) {
            return Err(Fault::malformed(format!("a token has the unknown type {other}")));
        }
        let vocabulary = Vocabulary { tokens, types };
        refuse_other_tokenizing(metadata)?;

        let (algorithm, default_add_bos) = match metadata.string("tokenizer.ggml.model")? {
            "gpt2" => {
                let byte_level = ByteLevel::from_metadata(metadata, &vocabulary)?;
                let add_bos = byte_level.adds_bos_by_default();
                (Algorithm::ByteLevel(byte_level), add_bos)
            }
            "llama" => (Algorithm::SentencePiece(SentencePiece::from_metadata(metadata, &vocabulary)?), true),
            other => {
                return Err(Fault::unsupported(format!(
                    "the tokenizer `{other}` is not one this engine knows"
                )));
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

        let id_of = |key: &str| -> Result<Option<u32>, Fault> {
            match metadata.optional(key, Metadata::u64)? {
                None => Ok(None),
                Some(id) => u32::try_from(id)
                    .ok()
                    .filter(|id| (*id as usize) < tokens.len())
                    .map(Some)
                    .ok_or_else(|| Fault::malformed(format!("`{key}` is {id}, outside the vocabulary"))),
            }
        };
        let bos = id_of("tokenizer.ggml.bos_token_id")?;
        let eos = id_of("tokenizer.ggml.eos_token_id")?;
        let mut end_markers = FxHashSet::default();
        for key in END_KEYS {
            end_markers.extend(id_of(key)?);
        }
        end_markers.extend(
            vocabulary
                .iter()
                .filter(|(_, text, kind)| *kind == token_type::CONTROL && END_MARKERS.contains(text))
                .map(|(id, _, _)| id),
        );
        if end_markers.is_empty() {
            return Err(Fault::malformed("no token ends a reply (`tokenizer.ggml.eos_token_id`)"));
        }

        let specials: FxHashMap<String, u32> = vocabulary
            .iter()
            .filter(|(_, text, kind)| {
                [token_type::CONTROL, token_type::USER_DEFINED].contains(kind) && !text.is_empty()
            })
            .map(|(id, text, _)| (text.to_owned(), id))
            .collect();
        if specials.len() > MAX_SPECIAL_TOKENS {
            return Err(Fault::unsupported(format!("the vocabulary has {} special tokens", specials.len())));
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
            end_markers,
            bos,
            eos,
            add_bos: metadata
                .optional("tokenizer.ggml.add_bos_token", Metadata::bool)?
                .unwrap_or(default_add_bos),
            texts_of_markers: Markers { bos: text_of(bos), eos: text_of(eos) },
        })
    }

    pub fn vocabulary_len(&self) -> usize {
        self.token_bytes.len()
    }

    /// The tokens of a text on its own, as they are billed. Nothing in it is taken for a special token. Bytes that
    /// the vocabulary cannot express are left out, as the published tokenizers do.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.append_text(text, true, &mut ids);
        ids
    }

    /// The same, for a text that stands after other text: no space is put before it.
    pub(crate) fn encode_text_after_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.append_text(text, false, &mut ids);
        ids
    }

    /// Whether a text has the same tokens wherever it stands.
    pub(crate) fn is_context_free(&self) -> bool {
        matches!(self.algorithm, Algorithm::ByteLevel(_))
    }

    /// Whether text on its own is tokenized with a space before it.
    pub(crate) fn puts_space_before_text(&self) -> bool {
        match &self.algorithm {
            Algorithm::ByteLevel(_) => false,
            Algorithm::SentencePiece(sentence_piece) => sentence_piece.adds_space_prefix(),
        }
    }

    fn append_text(&self, text: &str, at_start: bool, ids: &mut Vec<u32>) {
        match &self.algorithm {
            Algorithm::ByteLevel(byte_level) => byte_level.append(text, ids),
            Algorithm::SentencePiece(sentence_piece) => sentence_piece.append(text, at_start, ids),
        }
    }

    /// The tokens of the chat template's own text, special tokens recognised. `after_special` says whether a special
    /// token, or nothing, stands before it.
    pub(crate) fn encode_scaffolding(&self, text: &str, after_special: bool) -> Scaffolding {
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
        Scaffolding { ids, ends_with_special: rest.is_empty() && after_special }
    }

    /// Text that begins with a space gets no second one.
    fn append_plain(&self, text: &str, after_special: bool, ids: &mut Vec<u32>) {
        if !text.is_empty() {
            self.append_text(text, after_special && !text.starts_with(' '), ids);
        }
    }

    /// The bytes a generated token adds to a reply; they may be part of a character. Control tokens add none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.token_bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    pub fn ends_generation(&self, id: u32) -> bool {
        self.end_markers.contains(&id)
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

    pub(crate) fn markers(&self) -> &Markers {
        &self.texts_of_markers
    }
}

/// Refuses the keys whose value asks for what these tokenizers do not do.
fn refuse_other_tokenizing(metadata: &Metadata) -> Result<(), Fault> {
    for key in SWITCHES_THAT_MUST_BE_OFF {
        if metadata.optional(key, Metadata::bool)?.unwrap_or(false) {
            return Err(Fault::unsupported(format!("its tokenizer's `{key}` is on")));
        }
    }
    match LISTS_THAT_MUST_BE_EMPTY.into_iter().find(|key| metadata.get(key).is_some_and(is_filled)) {
        None => Ok(()),
        Some(key) => Err(Fault::unsupported(format!("its tokenizer has `{key}`"))),
    }
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(Array::Integers(items)) => !items.is_empty(),
        _ => true,
    }
}

/// Tokenized scaffolding.
pub(crate) struct Scaffolding {
    pub(crate) ids: Vec<u32>,
    /// Whether what follows stands right after a special token.
    pub(crate) ends_with_special: bool,
}

/// The vocabulary as the file lists it.
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
