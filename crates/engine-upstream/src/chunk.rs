//! Chat Completions as upstream servers speak them: the chunks of a stream, and whole replies, which are read like a stream of
//! one chunk. There is one chunk for each token, so texts are borrowed from it, and only what is needed is read. Unknown fields
//! are ignored.

use super::error::{UpstreamError, UpstreamErrorKind};
use super::lenient::{Count, FirstOf, Lenient, ObjectOrNone, Text};
use super::logprobs;
use chancery_engine::TokenLogprobs;
use serde::Deserialize;

/// Terminates the stream.
pub(super) const DONE: &str = "[DONE]";

#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(default, borrow)]
    choices: Option<FirstOf<Choice<'a>>>,
    #[serde(default)]
    usage: ObjectOrNone<UsageReport>,
    /// Ends the reply, so it need not be cheap to read.
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice<'a> {
    #[serde(default, borrow)]
    delta: Option<Delta<'a>>,
    /// Of a whole reply, instead of `delta`.
    #[serde(default, borrow)]
    message: Option<Delta<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Text<'a>>,
    /// vLLM: which `stop` string matched. A number is a token id.
    #[serde(default, borrow)]
    stop_reason: Lenient<'a>,
    /// SGLang: the same.
    #[serde(default, borrow)]
    matched_stop: Lenient<'a>,
    /// Only jobs that ask for them get any.
    #[serde(default)]
    logprobs: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Delta<'a> {
    #[serde(default, borrow)]
    content: Option<Text<'a>>,
    /// The model's reasoning, under either name. Servers that know both send the same text twice.
    #[serde(default, borrow)]
    reasoning_content: Lenient<'a>,
    #[serde(default, borrow)]
    reasoning: Lenient<'a>,
}

/// `usage` as it is sent. What is not a number counts as missing.
#[derive(Debug, Deserialize)]
struct UsageReport {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    completion_tokens: Count,
    #[serde(default)]
    prompt_tokens_details: ObjectOrNone<TokenDetails>,
    #[serde(default)]
    completion_tokens_details: ObjectOrNone<TokenDetails>,
}

#[derive(Debug, Deserialize)]
struct TokenDetails {
    #[serde(default)]
    cached_tokens: Count,
    #[serde(default)]
    reasoning_tokens: Count,
}

/// Token usage as reported by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) cached_tokens: u32,
    /// How many of `completion_tokens` were reasoning, if the server says.
    pub(super) reasoning_tokens: Option<u32>,
}

/// The server's finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerFinishReason {
    /// The model ended the reply.
    Stop,
    StopSequence,
    Length,
    /// The server stopped the reply because of its content.
    ContentFilter,
}

impl<'a> Chunk<'a> {
    /// The error contains nothing of the chunk's text, because that belongs to a caller.
    pub(super) fn parse(data: &'a str) -> Result<Self, UpstreamError> {
        let chunk: Self = serde_json::from_str(data).map_err(|error| {
            let (kind, column) = (error.classify(), error.column());
            UpstreamError::server_failure(format!(
                "invalid chat completion chunk ({kind:?} at column {column})"
            ))
        })?;
        match &chunk.error {
            None | Some(serde_json::Value::Null) => Ok(chunk),
            Some(error) => {
                Err(UpstreamError::server_failure(format!("error in stream{}", error_code_suffix(error))))
            }
        }
    }

    /// The text, if there is some and nothing else.
    pub(super) fn only_text(&self) -> Option<&str> {
        let has_logprobs = self.choice().is_some_and(|choice| choice.logprobs.is_some());
        let is_alone = self.reasoning().is_none()
            && self.usage().is_none()
            && !has_logprobs
            && matches!(self.finish_reason(), Ok(None));
        self.text().filter(|_| is_alone)
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.delta()?.content.as_deref().filter(|text| !text.is_empty())
    }

    /// What the model reasons before its answer.
    pub(super) fn reasoning(&self) -> Option<&str> {
        let delta = self.delta()?;
        let names = [&delta.reasoning_content, &delta.reasoning];
        names.into_iter().find_map(|value| value.as_str().filter(|text| !text.is_empty()))
    }

    /// The log probabilities of the chunk's tokens, of reasoning too. Empty if there are none, whatever is there instead.
    pub(super) fn logprobs(&self, max_top: u8) -> Vec<TokenLogprobs> {
        let logprobs = self.choice().and_then(|choice| choice.logprobs.as_ref());
        logprobs.map_or_else(Vec::new, |value| logprobs::parse(value, max_top))
    }

    pub(super) fn finish_reason(&self) -> Result<Option<ServerFinishReason>, UpstreamError> {
        let Some(choice) = self.choice() else { return Ok(None) };
        let has_matched = choice.stop_reason.as_str().is_some() || choice.matched_stop.as_str().is_some();
        match choice.finish_reason.as_deref() {
            None | Some("") => Ok(None),
            Some("stop" | "eos") if has_matched => Ok(Some(ServerFinishReason::StopSequence)),
            Some("stop" | "eos") => Ok(Some(ServerFinishReason::Stop)),
            Some("length") => Ok(Some(ServerFinishReason::Length)),
            Some("content_filter") => Ok(Some(ServerFinishReason::ContentFilter)),
            // The server itself aborted the job.
            Some(failed @ ("abort" | "error")) => {
                Err(UpstreamError::server_failure(format!("finish_reason {failed}")))
            }
            Some(other) => {
                let named = identifier(other).unwrap_or("(not an identifier)");
                Err(UpstreamError::new(
                    UpstreamErrorKind::UnsupportedFinish,
                    format!("unsupported finish_reason {named}"),
                ))
            }
        }
    }

    /// Returns `None` if the usage is missing or incomplete.
    pub(super) fn usage(&self) -> Option<Usage> {
        let usage = self.usage.get()?;
        let cached_tokens = usage.prompt_tokens_details.get().and_then(|details| details.cached_tokens.0);
        let reasoning_tokens =
            usage.completion_tokens_details.get().and_then(|details| details.reasoning_tokens.0);
        Some(Usage {
            prompt_tokens: usage.prompt_tokens.0?,
            completion_tokens: usage.completion_tokens.0?,
            cached_tokens: cached_tokens.unwrap_or(0),
            reasoning_tokens,
        })
    }

    fn delta(&self) -> Option<&Delta<'a>> {
        let choice = self.choice()?;
        choice.delta.as_ref().or(choice.message.as_ref())
    }

    fn choice(&self) -> Option<&Choice<'a>> {
        self.choices.as_ref()?.0.as_ref()
    }
}

/// The type or code of an OpenAI-style error, for the log. The message is left out: servers quote their input in it,
/// and prompts are never logged.
pub(super) fn error_code_suffix(error: &serde_json::Value) -> String {
    let name = |name: &str| error[name].as_str().and_then(identifier);
    name("code").or_else(|| name("type")).map_or_else(String::new, |kind| format!(" ({kind})"))
}

/// Accepts an identifier such as `context_length_exceeded`, but not a sentence.
fn identifier(text: &str) -> Option<&str> {
    const MAX_BYTES: usize = 64;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || byte == b'.';
    (!text.is_empty() && text.len() <= MAX_BYTES && text.bytes().all(is_name)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_errors_contain_no_model_text() {
        for data in [
            r#"{"choices":[{"delta":{"content":5},"finish_reason":"SECRET words"}]}"#,
            r#"{"choices":"SECRET"}"#,
            r#"{"error":{"message":"SECRET","type":"BadRequestError SECRET","code":400}}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"SECRET words"}]}"#,
        ] {
            let error = Chunk::parse(data).and_then(|chunk| chunk.finish_reason()).unwrap_err();
            assert!(!error.detail.contains("SECRET"), "{}", error.detail);
        }
        let known = Chunk::parse(r#"{"error":{"message":"x","type":"server_error"}}"#).unwrap_err();
        assert_eq!(known.detail, "error in stream (server_error)");
    }

    #[test]
    fn stop_reason_and_matched_stop_may_both_be_present() {
        let end = |stops: &str| {
            let data = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"stop",{stops}}}]}}"#);
            Chunk::parse(&data).and_then(|chunk| chunk.finish_reason()).unwrap()
        };
        assert_eq!(end(r#""stop_reason":null,"matched_stop":"END""#), Some(ServerFinishReason::StopSequence));
        assert_eq!(
            end(r#""stop_reason":"END","matched_stop":"END""#),
            Some(ServerFinishReason::StopSequence)
        );
        assert_eq!(end(r#""stop_reason":2,"matched_stop":2"#), Some(ServerFinishReason::Stop));
    }

    #[test]
    fn job_specific_finish_reason_is_not_a_server_error() {
        for reason in ["tool_calls", "function_call", "of their own"] {
            let data = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}"#);
            let error = Chunk::parse(&data).and_then(|chunk| chunk.finish_reason()).unwrap_err();
            assert!(!error.is_server_failure() && !error.is_retryable(), "{reason}");
        }
        let abort =
            Chunk::parse(r#"{"choices":[{"finish_reason":"abort"}]}"#).unwrap().finish_reason().unwrap_err();
        assert!(abort.is_server_failure() && abort.is_retryable());
    }

    #[test]
    fn reasoning_is_read_under_either_field_name_and_only_once() {
        for (delta, expected) in [
            (r#"{"reasoning_content":"Hm"}"#, Some("Hm")),
            (r#"{"reasoning":"Hm"}"#, Some("Hm")),
            (r#"{"reasoning_content":"Hm","reasoning":"Hm"}"#, Some("Hm")),
            (r#"{"reasoning_content":null,"reasoning":"Hm"}"#, Some("Hm")),
            (r#"{"reasoning_content":"","content":"x"}"#, None),
            (r#"{"reasoning":{"effort":"low"}}"#, None),
        ] {
            let data = format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#);
            let chunk = Chunk::parse(&data).unwrap();
            assert_eq!(chunk.reasoning(), expected, "{delta}");
        }
    }

    #[test]
    fn missing_and_null_chunk_fields_are_ignored() {
        for data in
            [r#"{}"#, r#"{"choices":null,"usage":null,"error":null}"#, r#"{"choices":[{"delta":null}]}"#]
        {
            let chunk = Chunk::parse(data).unwrap();
            assert_eq!((chunk.text(), chunk.finish_reason(), chunk.usage()), (None, Ok(None), None));
        }
        let usage =
            Chunk::parse(r#"{"usage":{"prompt_tokens":99999999999,"completion_tokens":2}}"#).unwrap().usage();
        let expected =
            Usage { prompt_tokens: u32::MAX, completion_tokens: 2, cached_tokens: 0, reasoning_tokens: None };
        assert_eq!(usage, Some(expected));
        assert_eq!(Chunk::parse(r#"{"usage":{"prompt_tokens":"7"}}"#).unwrap().usage(), None);
    }

    #[test]
    fn whole_reply_is_read_like_a_chunk() {
        let body = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"finish_reason":"length",
            "message":{"role":"assistant","content":"a \u00e9","reasoning_content":"Hm"},"logprobs":null}],
            "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"timings":{"predicted_n":2}}"#;
        let reply = Chunk::parse(body).unwrap();
        assert_eq!((reply.reasoning(), reply.text()), (Some("Hm"), Some("a é")));
        assert_eq!(reply.finish_reason(), Ok(Some(ServerFinishReason::Length)));
        assert_eq!(reply.usage().map(|usage| (usage.prompt_tokens, usage.completion_tokens)), Some((3, 2)));
    }

    #[test]
    fn usage_of_another_type_is_missing_and_fails_nothing() {
        for usage in [
            "[1]",
            "\"x\"",
            "7",
            "true",
            r#"{"prompt_tokens":-1,"completion_tokens":2}"#,
            r#"{"prompt_tokens":1.5}"#,
        ] {
            let data = format!(r#"{{"choices":[{{"delta":{{"content":"x"}}}},5],"usage":{usage}}}"#);
            let chunk = Chunk::parse(&data).unwrap();
            assert_eq!((chunk.text(), chunk.usage()), (Some("x"), None), "{usage}");
        }
        let details = r#"{"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":[],
            "completion_tokens_details":{"reasoning_tokens":1}}}"#;
        let expected =
            Usage { prompt_tokens: 1, completion_tokens: 2, cached_tokens: 0, reasoning_tokens: Some(1) };
        assert_eq!(Chunk::parse(details).unwrap().usage(), Some(expected));
    }

    #[test]
    fn text_without_escapes_is_not_copied() {
        let data = r#"{"choices":[{"delta":{"content":"plain","reasoning":"plain"}}]}"#;
        let chunk = Chunk::parse(data).unwrap();
        let range = data.as_bytes().as_ptr_range();
        for text in [chunk.text().unwrap(), chunk.reasoning().unwrap()] {
            assert!(range.contains(&text.as_ptr()), "borrowed from the chunk");
        }
    }
}
