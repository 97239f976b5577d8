//! Log probabilities in a server's stream, kept in step with the text: those of the answer follow the text that they
//! belong to, and those of reasoning, of the end marker and of a stop string are left out. Servers differ in what they
//! send, so the tokens are matched with the text by their bytes.
//!
//! - The tokens of a character that is not complete come without text. They wait for it.
//! - Another Chancery sends them after the text, or some with it and the rest after it. They are passed on as soon as they
//!   come.
//! - A token may come without log probabilities. Nobody can add them, so the caller gets fewer.
//! - The tokens between reasoning and answer (`</think>`) come without text too. They are left out, by the bytes of the
//!   answer's first text.

use super::chunk::ServerFinishReason;
use super::limits::{CAP_CHECK_FRACTION, MAX_EXTRA_LOGPROBS, MAX_TOKEN_BYTES};
use chancery_engine::{TokenLogprob, TokenLogprobs};
use serde_json::Value;

/// Reads OpenAI's `logprobs` of a choice. Whatever has another form is skipped.
pub(super) fn parse(logprobs: &Value, max_top: u8) -> Vec<TokenLogprobs> {
    let Some(content) = logprobs["content"].as_array() else { return Vec::new() };
    content.iter().filter_map(|entry| parse_entry(entry, max_top)).collect()
}

fn parse_entry(entry: &Value, max_top: u8) -> Option<TokenLogprobs> {
    let token = parse_token(entry)?;
    let alternatives = entry["top_logprobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut top: Vec<TokenLogprob> = alternatives.iter().filter_map(parse_token).collect();
    // Some servers put the chosen token first.
    top.sort_by(|one, other| other.logprob.total_cmp(&one.logprob));
    top.truncate(max_top.into());
    Some(TokenLogprobs { token, top })
}

fn parse_token(value: &Value) -> Option<TokenLogprob> {
    // Not infinite, which JSON cannot express, and no more than certain.
    let logprob = value["logprob"].as_f64()?.clamp(f64::from(f32::MIN), 0.0) as f32;
    let as_byte = |byte: &Value| u8::try_from(byte.as_u64()?).ok();
    let bytes: Option<Vec<u8>> =
        value["bytes"].as_array().and_then(|bytes| bytes.iter().map(as_byte).collect());
    let bytes = bytes.or_else(|| Some(value["token"].as_str()?.as_bytes().to_vec()))?;
    (bytes.len() <= MAX_TOKEN_BYTES).then_some(TokenLogprob { bytes, logprob })
}

/// One chunk of a reply, as far as log probabilities are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkText<'a> {
    pub(super) text: Option<&'a str>,
    pub(super) has_reasoning: bool,
    /// Whether the text is the first after reasoning, or comes with some.
    pub(super) follows_reasoning: bool,
    pub(super) finish_reason: Option<ServerFinishReason>,
}

/// Log probabilities that wait for their text.
#[derive(Debug, Default)]
pub(super) struct LogprobBuffer {
    waiting: Vec<TokenLogprobs>,
    /// Of text whose log probabilities have not come.
    uncovered_bytes: usize,
    /// Whether any came, of reasoning too.
    pub(super) has_any: bool,
    released: usize,
}

impl LogprobBuffer {
    /// Takes those of a chunk, and returns those that follow its text.
    pub(super) fn push(
        &mut self,
        logprobs: Vec<TokenLogprobs>,
        chunk: ChunkText<'_>,
        max_tokens: u32,
    ) -> Vec<TokenLogprobs> {
        self.has_any |= !logprobs.is_empty();
        let room = max_logprobs(max_tokens).saturating_sub(self.released);
        let mut ready = std::mem::take(&mut self.waiting);
        ready.extend(logprobs);
        match chunk.text {
            None if chunk.has_reasoning => return Vec::new(),
            // The tokens of a character that the cap cut off. They are in no text.
            None if chunk.finish_reason == Some(ServerFinishReason::Length) => {}
            // What waits at any other end is the end marker, or a stop string.
            None => {
                self.waiting = ready.split_off(covering(ready.iter(), self.uncovered_bytes));
                self.waiting.truncate(room);
                self.uncovered_bytes = self.uncovered_bytes.saturating_sub(token_bytes(&ready));
            }
            Some(text) => {
                let text_bytes = self.uncovered_bytes.saturating_add(text.len());
                if chunk.follows_reasoning {
                    let first = ready.len() - covering(ready.iter().rev(), text.len());
                    ready.drain(..first);
                }
                if chunk.has_stopped() {
                    let end = end_of_text(&ready, text);
                    ready.truncate(end.unwrap_or_else(|| covering(ready.iter(), text_bytes)));
                }
                let covered_bytes = token_bytes(&ready);
                let ends_text = |entry: &TokenLogprobs| text.as_bytes().ends_with(&entry.token.bytes);
                // Then what is missing is of earlier text, and never comes.
                let has_own = covered_bytes >= text.len() && ready.last().is_some_and(ends_text);
                self.uncovered_bytes = if has_own { 0 } else { text_bytes.saturating_sub(covered_bytes) };
            }
        }
        ready.truncate(room);
        self.released = self.released.saturating_add(ready.len());
        ready
    }
}

impl ChunkText<'_> {
    /// Whether an end marker or a stop string ended the reply here.
    fn has_stopped(&self) -> bool {
        matches!(self.finish_reason, Some(ServerFinishReason::Stop | ServerFinishReason::StopSequence))
    }
}

fn token_bytes(logprobs: &[TokenLogprobs]) -> usize {
    logprobs.iter().map(|entry| entry.token.bytes.len()).sum()
}

/// How many of the tokens it takes to have this many bytes, or all of them.
fn covering<'a>(logprobs: impl Iterator<Item = &'a TokenLogprobs>, text_bytes: usize) -> usize {
    let mut covered_bytes = 0;
    logprobs
        .take_while(|entry| {
            let is_needed = covered_bytes < text_bytes;
            covered_bytes += entry.token.bytes.len();
            is_needed
        })
        .count()
}

/// How many of the tokens come up to the one that ends the text; `None` if it has not come.
fn end_of_text(logprobs: &[TokenLogprobs], text: &str) -> Option<usize> {
    let ends_text = |bytes: &[u8]| !bytes.is_empty() && text.as_bytes().ends_with(bytes);
    let last = logprobs.iter().rposition(|entry| ends_text(&entry.token.bytes))?;
    (token_bytes(&logprobs[..=last]) >= text.len()).then_some(last + 1)
}

/// For the tokens of a reply, and for those that may come past its cap.
fn max_logprobs(max_tokens: u32) -> usize {
    (max_tokens as usize)
        .saturating_add((max_tokens / CAP_CHECK_FRACTION) as usize)
        .saturating_add(MAX_EXTRA_LOGPROBS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokens(texts: &[&str]) -> Vec<TokenLogprobs> {
        let token = |text: &&str| TokenLogprob { bytes: text.as_bytes().to_vec(), logprob: -0.5 };
        texts.iter().map(|text| TokenLogprobs { token: token(text), top: Vec::new() }).collect()
    }

    fn only(logprobs: Vec<TokenLogprobs>) -> TokenLogprobs {
        assert_eq!(logprobs.len(), 1);
        logprobs.into_iter().next().unwrap()
    }

    const NO_TEXT: ChunkText<'static> =
        ChunkText { text: None, has_reasoning: false, follows_reasoning: false, finish_reason: None };

    fn text(text: &str) -> ChunkText<'_> {
        ChunkText { text: Some(text), ..NO_TEXT }
    }

    fn ended(reason: ServerFinishReason) -> ChunkText<'static> {
        ChunkText { finish_reason: Some(reason), ..NO_TEXT }
    }

    #[test]
    fn entries_are_read_in_every_form_that_servers_send() {
        let entry = |bytes: Value| json!({"content": [{"token": "é", "logprob": -0.25, "bytes": bytes}]});
        for bytes in [json!([0xc3, 0xa9]), Value::Null, json!([300]), json!("x")] {
            let parsed = only(parse(&entry(bytes), 2));
            assert_eq!(parsed.token, TokenLogprob { bytes: "é".as_bytes().to_vec(), logprob: -0.25 });
            assert!(parsed.top.is_empty());
        }
        for none in
            [Value::Null, json!({}), json!({"content": null}), json!({"content": []}), json!([1]), json!("x")]
        {
            assert_eq!(parse(&none, 2), Vec::new(), "{none}");
        }
        for (logprob, expected) in [(-1e300, f32::MIN), (1e300, 0.0)] {
            let partial =
                json!({"content": [{"token": "a"}, {"logprob": -1.0}, {"token": "b", "logprob": logprob}]});
            let parsed = only(parse(&partial, 2));
            assert_eq!(parsed.token, TokenLogprob { bytes: b"b".to_vec(), logprob: expected });
        }
    }

    #[test]
    fn alternatives_are_sorted_and_no_more_than_requested() {
        let alternative =
            |token: &str, logprob: f64| json!({"token": token, "logprob": logprob, "bytes": null});
        let alternatives = [alternative("chosen", -3.0), alternative("a", -0.1), alternative("b", -0.2)];
        let entry = json!({"content": [{"token": "chosen", "logprob": -3.0, "top_logprobs": alternatives}]});
        for (max_top, expected) in
            [(0, vec![]), (1, vec!["a"]), (2, vec!["a", "b"]), (9, vec!["a", "b", "chosen"])]
        {
            let parsed = only(parse(&entry, max_top));
            let top: Vec<&[u8]> = parsed.top.iter().map(|token| token.bytes.as_slice()).collect();
            assert_eq!(top, expected.iter().map(|text: &&str| text.as_bytes()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn tokens_of_an_incomplete_character_wait_for_it() {
        let mut buffer = LogprobBuffer::default();
        assert_eq!(buffer.push(tokens(&["a"]), text("a"), 8), tokens(&["a"]));
        assert_eq!(buffer.push(tokens(&["b"]), NO_TEXT, 8), tokens(&[]));
        assert_eq!(buffer.push(tokens(&["c"]), text("bc"), 8), tokens(&["b", "c"]));
    }

    #[test]
    fn tokens_that_come_after_their_text_are_not_delayed_further() {
        let mut buffer = LogprobBuffer::default();
        assert_eq!(buffer.push(tokens(&[]), text("one"), 8), tokens(&[]));
        assert!(!buffer.has_any);
        assert_eq!(buffer.push(tokens(&[]), text(" two"), 8), tokens(&[]));
        let late = tokens(&["one", " two", "<end>"]);
        assert_eq!(buffer.push(late, NO_TEXT, 8), tokens(&["one", " two"]), "the end marker waits in vain");
        assert_eq!(buffer.push(tokens(&[]), ended(ServerFinishReason::Stop), 8), tokens(&[]));
    }

    #[test]
    fn tokens_of_which_some_come_after_their_text_are_all_passed_on() {
        let mut buffer = LogprobBuffer::default();
        assert_eq!(buffer.push(tokens(&["one"]), text("one two three"), 8), tokens(&["one"]));
        assert_eq!(buffer.push(tokens(&[" two"]), text(" four"), 8), tokens(&[" two"]));
        assert_eq!(buffer.push(tokens(&[" three"]), NO_TEXT, 8), tokens(&[" three"]));
        assert_eq!(buffer.push(tokens(&[" four", "<end>"]), NO_TEXT, 8), tokens(&[" four"]));
    }

    #[test]
    fn token_that_came_without_logprobs_lets_no_end_marker_through() {
        let mut buffer = LogprobBuffer::default();
        assert_eq!(buffer.push(tokens(&["one"]), text("one"), 8), tokens(&["one"]));
        assert_eq!(buffer.push(tokens(&[]), text(" two"), 8), tokens(&[]));
        assert_eq!(buffer.push(tokens(&[" three"]), text(" three"), 8), tokens(&[" three"]));
        assert_eq!(buffer.push(tokens(&["<end>"]), NO_TEXT, 8), tokens(&[]));
    }

    #[test]
    fn character_that_the_cap_cut_off_keeps_its_tokens_and_an_end_marker_does_not() {
        let mut buffer = LogprobBuffer::default();
        buffer.push(tokens(&["b"]), NO_TEXT, 8);
        assert_eq!(buffer.push(tokens(&["c"]), ended(ServerFinishReason::Length), 8), tokens(&["b", "c"]));
        assert_eq!(buffer.push(tokens(&["<end>"]), ended(ServerFinishReason::Stop), 8), tokens(&[]));
        let last = ChunkText { text: Some("ab"), ..ended(ServerFinishReason::Stop) };
        let mut buffer = LogprobBuffer::default();
        assert_eq!(buffer.push(tokens(&["a", "b", "<end>"]), last, 8), tokens(&["a", "b"]));
    }

    #[test]
    fn tokens_of_reasoning_are_left_out() {
        let mut buffer = LogprobBuffer::default();
        let reasoning = ChunkText { has_reasoning: true, ..NO_TEXT };
        assert_eq!(buffer.push(tokens(&["hm"]), reasoning, 8), tokens(&[]));
        assert!(buffer.has_any);
        assert_eq!(buffer.push(tokens(&["</think>"]), NO_TEXT, 8), tokens(&[]));
        let first = ChunkText { follows_reasoning: true, ..text("Yes") };
        assert_eq!(buffer.push(tokens(&["Yes"]), first, 8), tokens(&["Yes"]));
        let mixed = ChunkText { has_reasoning: true, follows_reasoning: true, ..text("No") };
        assert_eq!(buffer.push(tokens(&["hm", "No"]), mixed, 8), tokens(&["No"]));
    }

    #[test]
    fn server_cannot_fill_the_memory_with_logprobs() {
        let mut buffer = LogprobBuffer::default();
        for _ in 0..100 {
            buffer.push(tokens(&["x"; 50]), NO_TEXT, 16);
        }
        assert_eq!(buffer.waiting.len(), max_logprobs(16));
        assert_eq!(buffer.push(tokens(&["x"; 50]), text("x"), 16).len(), max_logprobs(16));
        assert_eq!(buffer.push(tokens(&["x"; 50]), text("x"), 16).len(), 0);
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
        let entry =
            json!({"token": "a", "logprob": -1.0, "top_logprobs": [{"token": long, "logprob": -1.0}]});
        let entries = json!({"content": [entry, {"token": long, "logprob": -1.0}]});
        assert!(only(parse(&entries, 1)).top.is_empty());
    }
}
