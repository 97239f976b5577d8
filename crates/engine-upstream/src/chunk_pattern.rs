//! Recognises chunks of a stream that differ only in their text, which most do, and reads their text without parsing them.
//!
//! A learned chunk is JSON with the text as a string without escapes. If another chunk has the same bytes before and after its
//! text, and the text itself needs no escapes, parsing it would give the same values and the other text. Everything else is parsed.

use super::chunk::Chunk;

/// What surrounds the text of the last chunk with nothing but text. Empty before there was one.
#[derive(Debug, Default)]
pub(super) struct ChunkPattern {
    before: String,
    after: String,
}

impl ChunkPattern {
    /// Returns the text of a chunk that is like the learned one.
    pub(super) fn text<'a>(&self, data: &'a str) -> Option<&'a str> {
        if self.before.is_empty() {
            return None;
        }
        let text = data.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())?;
        (!text.is_empty() && text.bytes().all(is_unescaped)).then_some(text)
    }

    /// Learns from a chunk that was parsed, if it has nothing but text.
    pub(super) fn learn(&mut self, data: &str, chunk: &Chunk<'_>) {
        let Some(text) = chunk.only_text() else { return };
        // A text with escapes is a copy, and not a part of the data.
        let Some(start) = offset_in(data, text) else { return };
        self.before.clear();
        self.before.push_str(&data[..start]);
        self.after.clear();
        self.after.push_str(&data[start + text.len()..]);
    }
}

/// Whether a JSON string may contain the byte as it is.
fn is_unescaped(byte: u8) -> bool {
    byte >= b' ' && byte != b'"' && byte != b'\\'
}

/// Where `part` begins, if it is borrowed from `whole`.
fn offset_in(whole: &str, part: &str) -> Option<usize> {
    let offset = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    (offset + part.len() <= whole.len()).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk(text: &str) -> String {
        let text = serde_json::to_string(text).unwrap();
        format!(
            r#"{{"id":"chat-1","model":"m","choices":[{{"index":0,"delta":{{"content":{text}}},"finish_reason":null}}],"usage":null}}"#
        )
    }

    fn learned_from(data: &str) -> ChunkPattern {
        let mut pattern = ChunkPattern::default();
        pattern.learn(data, &Chunk::parse(data).unwrap());
        pattern
    }

    #[test]
    fn chunk_with_another_text_is_recognised() {
        let pattern = learned_from(&chunk("Dear"));
        for text in [" Mr", " Müller", "👋", "}]"] {
            assert_eq!(pattern.text(&chunk(text)), Some(text));
        }
    }

    #[test]
    fn chunk_with_anything_else_is_not_recognised() {
        let plain = chunk("Dear");
        let pattern = learned_from(&plain);
        for other in [
            chunk(""),
            chunk("a\nb"),
            chunk(r"a\b"),
            chunk("a\"b"),
            plain.replace("chat-1", "chat-2"),
            plain.replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#),
            plain.replace("Dear", r#"Dear","content":"x"#),
            plain.replace("Dear", "De\u{1}ar"),
        ] {
            assert_eq!(pattern.text(&other), None, "{other}");
        }
    }

    #[test]
    fn only_chunks_with_nothing_but_unescaped_text_are_learned() {
        for data in [
            "{}".to_owned(),
            chunk(""),
            chunk("a\nb"),
            chunk("x").replace("null}]", r#""stop"}]"#),
            chunk("x").replace(r#""usage":null"#, r#""usage":{"prompt_tokens":1,"completion_tokens":1}"#),
            chunk("x").replace(r#""content""#, r#""reasoning":"hm","content""#),
            chunk("x").replace(r#""index":0"#, r#""logprobs":{"content":[]}"#),
        ] {
            let pattern = learned_from(&data);
            assert_eq!(pattern.text(&data), None, "{data}");
        }
    }

    proptest! {
        #[test]
        fn recognised_text_is_what_parsing_finds(known in "[a-z]{1,8}", data in r#"[a-z"\\{}:,é\n\u{1}]{0,24}"#) {
            let known = chunk(&known);
            let pattern = learned_from(&known);
            let data = known.replacen(pattern.text(&known).unwrap(), &data, 1);
            if let Some(text) = pattern.text(&data) {
                let parsed = Chunk::parse(&data).unwrap();
                prop_assert_eq!(parsed.only_text(), Some(text));
            }
        }
    }
}
