//! Chat Completions as spoken to upstream servers: the request body of a job and the chunks of its stream. Unknown
//! fields are ignored.

use super::capabilities::ServerKind;
use super::error::{UpstreamError, UpstreamErrorKind};
use super::logprobs;
use super::sampling_params::SamplingParams;
use chancery_engine::{Job, TokenLogprobs, Turn};
use serde::{Deserialize, Serialize};

/// Terminates the stream.
pub(super) const DONE: &str = "[DONE]";

/// vLLM's option to report the usage so far with every chunk.
pub(super) const CONTINUOUS_USAGE_OPTION: &str = "continuous_usage_stats";

/// The parts of a request body that may change between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyOptions {
    pub(super) max_tokens: u32,
    /// Whether usage comes with every chunk, so that the prompt can be billed if the caller disconnects.
    pub(super) has_continuous_usage: bool,
    /// Whether to send empty turns, as the embedded engine does: a template may insert its own text for a missing
    /// system turn. Some servers reject them.
    pub(super) has_empty_turns: bool,
    pub(super) has_cache_salt: bool,
    pub(super) server_kind: ServerKind,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    /// The older name, which all servers know. Not all know the new one.
    max_tokens: u32,
    temperature: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    /// `top_k` and `min_p` are not part of OpenAI's API, but of vLLM's, SGLang's and llama-server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(flatten)]
    sampling_params: SamplingParams,
    stream: bool,
    stream_options: StreamOptions,
    /// Keeps the server's prefix cache apart between accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continuous_usage_stats: bool,
}

pub(super) fn body(
    upstream_model: &str,
    turns: &[Turn],
    job: &Job,
    cache_salt: &str,
    options: BodyOptions,
) -> Result<Vec<u8>, UpstreamError> {
    let sampling = job.sampling;
    let is_sampled = sampling.temperature > 0.0;
    let body = Body {
        model: upstream_model,
        messages: turns
            .iter()
            .filter(|turn| options.has_empty_turns || !turn.text.is_empty())
            .map(|turn| Message { role: turn.role.as_str(), content: &turn.text })
            .collect(),
        max_tokens: options.max_tokens,
        temperature: sampling.temperature,
        top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
        top_k: sampling.top_k.map(u32::from),
        min_p: (sampling.min_p > 0.0).then_some(sampling.min_p),
        // Servers expect a signed integer. Greedy decoding needs no seed.
        seed: is_sampled.then_some(sampling.seed & i64::MAX.cast_unsigned()),
        stop: &job.stop,
        sampling_params: SamplingParams::new(job, options.server_kind),
        stream: true,
        stream_options: StreamOptions {
            include_usage: true,
            continuous_usage_stats: options.has_continuous_usage,
        },
        cache_salt: options.has_cache_salt.then_some(cache_salt),
    };
    serde_json::to_vec(&body)
        .map_err(|error| UpstreamError::server_failure(format!("cannot serialize the request: {error}")))
}

#[derive(Debug, Deserialize)]
pub(super) struct Chunk {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<serde_json::Value>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<String>,
    /// vLLM: which `stop` string matched. A number is a token id.
    #[serde(default)]
    stop_reason: Option<serde_json::Value>,
    /// SGLang: the same.
    #[serde(default)]
    matched_stop: Option<serde_json::Value>,
    #[serde(default)]
    logprobs: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    /// The model's reasoning, under either name. Servers that know both send the same text twice.
    #[serde(default)]
    reasoning_content: Option<serde_json::Value>,
    #[serde(default)]
    reasoning: Option<serde_json::Value>,
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

impl Chunk {
    /// The error contains nothing of the chunk's text, because that belongs to a caller.
    pub(super) fn parse(data: &str) -> Result<Self, UpstreamError> {
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

    pub(super) fn text(&self) -> Option<&str> {
        self.choice()?.delta.as_ref()?.content.as_deref().filter(|text| !text.is_empty())
    }

    /// What the model reasons before its answer.
    pub(super) fn reasoning(&self) -> Option<&str> {
        let delta = self.choice()?.delta.as_ref()?;
        let names = [&delta.reasoning_content, &delta.reasoning];
        names.into_iter().find_map(|value| value.as_ref()?.as_str().filter(|text| !text.is_empty()))
    }

    /// The log probabilities of the chunk's tokens, of reasoning too. Empty if there are none, whatever is there instead.
    pub(super) fn logprobs(&self, max_top: u8) -> Vec<TokenLogprobs> {
        let logprobs = self.choice().and_then(|choice| choice.logprobs.as_ref());
        logprobs.map_or_else(Vec::new, |value| logprobs::parse(value, max_top))
    }

    pub(super) fn finish_reason(&self) -> Result<Option<ServerFinishReason>, UpstreamError> {
        let Some(choice) = self.choice() else { return Ok(None) };
        let is_text = |value: &Option<serde_json::Value>| matches!(value, Some(serde_json::Value::String(_)));
        match choice.finish_reason.as_deref() {
            None | Some("") => Ok(None),
            Some("stop" | "eos") if is_text(&choice.stop_reason) || is_text(&choice.matched_stop) => {
                Ok(Some(ServerFinishReason::StopSequence))
            }
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
        let usage = self.usage.as_ref()?;
        let count = |value: &serde_json::Value| Some(u32::try_from(value.as_u64()?).unwrap_or(u32::MAX));
        Some(Usage {
            prompt_tokens: count(&usage["prompt_tokens"])?,
            completion_tokens: count(&usage["completion_tokens"])?,
            cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
            reasoning_tokens: count(&usage["completion_tokens_details"]["reasoning_tokens"]),
        })
    }

    fn choice(&self) -> Option<&Choice> {
        self.choices.as_ref()?.first()
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
            let chunk = Chunk::parse(&format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#)).unwrap();
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
}
