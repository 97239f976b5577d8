//! How many bytes of text one token of a `tokenizer.json` can stand for. A text with more bytes than that times the context
//! cannot fit, so it need not be tokenized. The bound must never be too low, so only tokenizers whose every part is known to
//! keep or lengthen the text have one: byte-pair encoding that expresses every byte.

use serde_json::Value;

/// How much shorter NFC can make a text, in UTF-8 bytes. Its decomposition is at most three times as long as the result (as
/// U+0390 shows), and the text at most three times as long as its decomposition (as the Kelvin sign U+212A shows).
const MAX_NFC_SHRINKAGE: usize = 3 * 3;

/// The bytes that occur in UTF-8.
fn utf8_bytes() -> impl Iterator<Item = u8> {
    (0..=0xf4_u8).filter(|byte| !matches!(byte, 0xc0 | 0xc1))
}

/// `None` if there is no known bound.
pub(super) fn max_bytes_per_token(tokenizer: &Value) -> Option<usize> {
    let shrinkage = normalizer_shrinkage(&tokenizer["normalizer"])?;
    let model = &tokenizer["model"];
    // With these, a byte inside a word is another token, which may be missing.
    let has_affix = |name: &str| model[name].as_str().is_some_and(|affix| !affix.is_empty());
    if !keeps_text(&tokenizer["pre_tokenizer"])
        || model["type"] != "BPE"
        || has_affix("continuing_subword_prefix")
        || has_affix("end_of_word_suffix")
    {
        return None;
    }
    let vocabulary = model["vocab"].as_object()?;
    let has_byte_fallback = model["byte_fallback"] == true
        && utf8_bytes().all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")));
    let is_byte_level = (is_or_has(&tokenizer["pre_tokenizer"], "ByteLevel")
        || is_or_has(&tokenizer["normalizer"], "ByteLevel"))
        && utf8_bytes().all(|byte| vocabulary.contains_key(char_of(byte).encode_utf8(&mut [0; 4]) as &str));
    if !has_byte_fallback && !is_byte_level {
        return None;
    }
    // In the vocabulary, a byte of text is one byte or more.
    let longest = vocabulary.keys().map(String::len).max()?;
    longest.checked_mul(shrinkage)
}

/// By how much it can shorten a text; `None` if unknown.
fn normalizer_shrinkage(normalizer: &Value) -> Option<usize> {
    if normalizer.is_null() {
        return Some(1);
    }
    match normalizer["type"].as_str()? {
        "NFC" => Some(MAX_NFC_SHRINKAGE),
        "Prepend" | "ByteLevel" => Some(1),
        "Replace" => {
            let replaced = normalizer["pattern"]["String"].as_str()?;
            (normalizer["content"].as_str()?.len() >= replaced.len()).then_some(1)
        }
        "Sequence" => normalizer["normalizers"]
            .as_array()?
            .iter()
            .try_fold(1_usize, |product, part| product.checked_mul(normalizer_shrinkage(part)?)),
        _ => None,
    }
}

/// Whether a pre-tokenizer drops nothing.
fn keeps_text(pre_tokenizer: &Value) -> bool {
    if pre_tokenizer.is_null() {
        return true;
    }
    match pre_tokenizer["type"].as_str() {
        Some("ByteLevel" | "Metaspace" | "Digits") => true,
        Some("Split") => pre_tokenizer["behavior"].as_str().is_some_and(|behavior| behavior != "Removed"),
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array().is_some_and(|parts| parts.iter().all(keeps_text))
        }
        _ => false,
    }
}

fn is_or_has(part: &Value, kind: &str) -> bool {
    part["type"] == kind
        || ["normalizers", "pretokenizers"].iter().any(|list| {
            part[*list].as_array().is_some_and(|parts| parts.iter().any(|part| is_or_has(part, kind)))
        })
}

/// GPT-2's character for a byte.
fn char_of(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match is_printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|other| !is_printable(*other)).count();
            u32::try_from(before)
                .ok()
                .and_then(|before| char::from_u32(0x100 + before))
                .unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn byte_level(normalizer: &Value, pre_tokenizer: &Value, more: &[&str]) -> Value {
        let bytes = (0..=255_u8).map(|byte| char_of(byte).to_string());
        let tokens = bytes.chain(more.iter().map(|token| (*token).to_owned()));
        let vocab: serde_json::Map<String, Value> =
            tokens.enumerate().map(|(id, token)| (token, json!(id))).collect();
        json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    }

    #[test]
    fn byte_level_bound_is_the_longest_token() {
        let bytes = json!({"type": "ByteLevel"});
        let tokenizer = byte_level(&Value::Null, &bytes, &["abcdefgh"]);
        assert_eq!(max_bytes_per_token(&tokenizer), Some(8));
        let split = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"}, {"type": "ByteLevel"}]});
        assert_eq!(
            max_bytes_per_token(&byte_level(&json!({"type": "NFC"}), &split, &["abcdefgh"])),
            Some(72)
        );
    }

    #[test]
    fn byte_fallback_bound_is_the_longest_piece() {
        let mut vocab: serde_json::Map<String, Value> =
            (0..=255).map(|byte| (format!("<0x{byte:02X}>"), json!(byte))).collect();
        vocab.insert("\u{2581}ledgers".to_owned(), json!(256));
        let normalizer = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]});
        let with = |byte_fallback: bool| {
            json!({"normalizer": normalizer, "pre_tokenizer": null,
                "model": {"type": "BPE", "byte_fallback": byte_fallback, "vocab": vocab, "merges": []}})
        };
        assert_eq!(max_bytes_per_token(&with(true)), Some(10));
        assert_eq!(max_bytes_per_token(&with(false)), None, "what it does not know, it drops");
    }

    #[test]
    fn tokenizer_that_may_drop_text_has_no_bound() {
        let bytes = json!({"type": "ByteLevel"});
        let mut incomplete = byte_level(&Value::Null, &bytes, &[]);
        incomplete["model"]["vocab"].as_object_mut().unwrap().remove("a");
        let unknown_parts = [
            (json!({"type": "Strip", "strip_left": true, "strip_right": true}), bytes.clone()),
            (json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}), bytes.clone()),
            (json!({"type": "Replace", "pattern": {"String": "  "}, "content": " "}), bytes),
            (Value::Null, json!({"type": "WhitespaceSplit"})),
            (
                Value::Null,
                json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}, {"type": "ByteLevel"}]}),
            ),
        ];
        let unknown_parts = unknown_parts.map(|(normalizer, split)| byte_level(&normalizer, &split, &[]));
        let words = json!({"normalizer": null, "pre_tokenizer": null,
            "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}});
        for tokenizer in unknown_parts.into_iter().chain([incomplete, words]) {
            assert_eq!(max_bytes_per_token(&tokenizer), None, "{}", tokenizer["normalizer"]);
        }
    }
}
