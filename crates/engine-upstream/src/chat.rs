//! Chat Completions as this side speaks it: the body of a job, and what a chunk of its stream says. Whatever else a server
//! sends is passed over.

use super::fault::{Fault, Trouble};
use chancery_engine::{Job, Turn};
use serde::{Deserialize, Serialize};

/// After it, nothing comes.
pub(super) const DONE: &str = "[DONE]";

/// The option to report what was counted so far with every chunk, which is vLLM's.
pub(super) const RUNNING_USAGE: &str = "continuous_usage_stats";

/// What of a job's body may differ between two sendings of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) max_tokens: u32,
    /// Whether usage shall come with every chunk, so that a caller who hangs up can be billed for the prompt.
    pub(super) has_running_usage: bool,
    /// Empty turns go along like all others, as they do in the embedded engine: a template may well put words of its own in
    /// the place of a system turn that is missing. But some servers refuse them.
    pub(super) has_empty_turns: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    /// The name that all servers know; today's other name is not known to all.
    max_tokens: u32,
    temperature: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    /// These two are no part of OpenAI's API, but of vLLM's, SGLang's and llama-server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    stream: bool,
    stream_options: StreamOptions,
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

pub(super) fn body(upstream_model: &str, turns: &[Turn], job: &Job, form: Form) -> Result<Vec<u8>, Fault> {
    let sampling = job.sampling;
    let draws = sampling.temperature > 0.0;
    let body = Body {
        model: upstream_model,
        messages: turns
            .iter()
            .filter(|turn| form.has_empty_turns || !turn.text.is_empty())
            .map(|turn| Message { role: turn.role.as_str(), content: &turn.text })
            .collect(),
        max_tokens: form.max_tokens,
        temperature: sampling.temperature,
        top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
        top_k: sampling.top_k.map(u32::from),
        min_p: (sampling.min_p > 0.0).then_some(sampling.min_p),
        // Servers take a signed number; where nothing is drawn, none is needed.
        seed: draws.then_some(sampling.seed & i64::MAX.cast_unsigned()),
        stop: &job.stop,
        stream: true,
        stream_options: StreamOptions { include_usage: true, continuous_usage_stats: form.has_running_usage },
    };
    serde_json::to_vec(&body)
        .map_err(|error| Fault::broken(format!("a job cannot be written as JSON: {error}")))
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
    /// What of `stop` ended it, as vLLM says it; a number is a token's.
    #[serde(default)]
    stop_reason: Option<serde_json::Value>,
    /// The same as SGLang says it.
    #[serde(default)]
    matched_stop: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    /// What the model thinks before it answers, under either name. It is not handed on.
    #[serde(default)]
    reasoning_content: Option<serde_json::Value>,
    #[serde(default)]
    reasoning: Option<serde_json::Value>,
}

/// What the server says it counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) cached_tokens: u32,
}

/// Why a server says it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// By itself.
    Stop,
    StopSequence,
    Length,
}

impl Chunk {
    /// What is told of a chunk that cannot be read has nothing of its text: that is a caller's.
    pub(super) fn parse(data: &str) -> Result<Self, Fault> {
        let chunk: Self = serde_json::from_str(data).map_err(|error| {
            let (kind, column) = (error.classify(), error.column());
            Fault::broken(format!("an event is no chunk of a chat completion ({kind:?} at column {column})"))
        })?;
        match &chunk.error {
            None | Some(serde_json::Value::Null) => Ok(chunk),
            Some(error) => Err(Fault::broken(format!("it failed in the middle{}", kind_of_error(error)))),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.choice()?.delta.as_ref()?.content.as_deref().filter(|text| !text.is_empty())
    }

    /// Whether it shows the model at work before its answer begins.
    pub(super) fn has_reasoning(&self) -> bool {
        let Some(delta) = self.choice().and_then(|choice| choice.delta.as_ref()) else { return false };
        let is_text = |value: &Option<serde_json::Value>| {
            value.as_ref().and_then(serde_json::Value::as_str).is_some_and(|text| !text.is_empty())
        };
        is_text(&delta.reasoning_content) || is_text(&delta.reasoning)
    }

    pub(super) fn finish(&self) -> Result<Option<Finish>, Fault> {
        let Some(choice) = self.choice() else { return Ok(None) };
        let is_text = |value: &Option<serde_json::Value>| matches!(value, Some(serde_json::Value::String(_)));
        match choice.finish_reason.as_deref() {
            None | Some("") => Ok(None),
            Some("stop" | "eos") if is_text(&choice.stop_reason) || is_text(&choice.matched_stop) => {
                Ok(Some(Finish::StopSequence))
            }
            Some("stop" | "eos") => Ok(Some(Finish::Stop)),
            Some("length") => Ok(Some(Finish::Length)),
            // These tell of the server: it gave the job up.
            Some(failed @ ("abort" | "error")) => {
                Err(Fault::broken(format!("it ended with the finish_reason {failed}")))
            }
            Some(other) => {
                let named = word(other).unwrap_or("of its own");
                Err(Fault::new(Trouble::Unusable, format!("it ended with the finish_reason {named}")))
            }
        }
    }

    /// None where it says nothing that can be used.
    pub(super) fn usage(&self) -> Option<Usage> {
        let usage = self.usage.as_ref()?;
        let count = |value: &serde_json::Value| Some(u32::try_from(value.as_u64()?).unwrap_or(u32::MAX));
        Some(Usage {
            prompt_tokens: count(&usage["prompt_tokens"])?,
            completion_tokens: count(&usage["completion_tokens"])?,
            cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
        })
    }

    fn choice(&self) -> Option<&Choice> {
        self.choices.as_ref()?.first()
    }
}

/// The type or code of an error as OpenAI's family has it, for the log. Its message is left out: servers repeat in it what they
/// were sent, and a prompt is never logged.
pub(super) fn kind_of_error(error: &serde_json::Value) -> String {
    let name = |name: &str| error[name].as_str().and_then(word);
    name("code").or_else(|| name("type")).map_or_else(String::new, |kind| format!(" ({kind})"))
}

/// A name such as `context_length_exceeded`, and no sentence.
fn word(text: &str) -> Option<&str> {
    const MAX_BYTES: usize = 64;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || byte == b'.';
    (!text.is_empty() && text.len() <= MAX_BYTES && text.bytes().all(is_name)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_in_what_is_logged() {
        for data in [
            r#"{"choices":[{"delta":{"content":5},"finish_reason":"SECRET words"}]}"#,
            r#"{"choices":"SECRET"}"#,
            r#"{"error":{"message":"SECRET","type":"BadRequestError SECRET","code":400}}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"SECRET words"}]}"#,
        ] {
            let fault = Chunk::parse(data).and_then(|chunk| chunk.finish()).unwrap_err();
            assert!(!fault.story.contains("SECRET"), "{}", fault.story);
        }
        let known = Chunk::parse(r#"{"error":{"message":"x","type":"server_error"}}"#).unwrap_err();
        assert_eq!(known.story, "it failed in the middle (server_error)");
    }

    #[test]
    fn both_names_of_what_stopped_it_may_be_there_at_once() {
        let end = |stops: &str| {
            let data = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"stop",{stops}}}]}}"#);
            Chunk::parse(&data).and_then(|chunk| chunk.finish()).unwrap()
        };
        assert_eq!(end(r#""stop_reason":null,"matched_stop":"END""#), Some(Finish::StopSequence));
        assert_eq!(end(r#""stop_reason":"END","matched_stop":"END""#), Some(Finish::StopSequence));
        assert_eq!(end(r#""stop_reason":2,"matched_stop":2"#), Some(Finish::Stop));
    }

    #[test]
    fn a_reason_to_end_that_is_the_jobs_own_is_no_fault_of_the_server() {
        for reason in ["content_filter", "tool_calls", "function_call", "of their own"] {
            let data = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}"#);
            let fault = Chunk::parse(&data).and_then(|chunk| chunk.finish()).unwrap_err();
            assert!(!fault.speaks_against_the_server() && !fault.is_worth_another_try(), "{reason}");
        }
        let abort = Chunk::parse(r#"{"choices":[{"finish_reason":"abort"}]}"#).unwrap().finish().unwrap_err();
        assert!(abort.speaks_against_the_server() && abort.is_worth_another_try());
    }

    #[test]
    fn reasoning_is_seen_under_either_name() {
        for (delta, expected) in [
            (r#"{"reasoning_content":"Hm"}"#, true),
            (r#"{"reasoning":"Hm"}"#, true),
            (r#"{"reasoning_content":"","content":"x"}"#, false),
            (r#"{"reasoning":{"effort":"low"}}"#, false),
        ] {
            let chunk = Chunk::parse(&format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#)).unwrap();
            assert_eq!(chunk.has_reasoning(), expected, "{delta}");
        }
    }

    #[test]
    fn what_servers_leave_out_or_set_to_null_is_passed_over() {
        for data in
            [r#"{}"#, r#"{"choices":null,"usage":null,"error":null}"#, r#"{"choices":[{"delta":null}]}"#]
        {
            let chunk = Chunk::parse(data).unwrap();
            assert_eq!((chunk.text(), chunk.finish(), chunk.usage()), (None, Ok(None), None));
        }
        let usage =
            Chunk::parse(r#"{"usage":{"prompt_tokens":99999999999,"completion_tokens":2}}"#).unwrap().usage();
        assert_eq!(usage, Some(Usage { prompt_tokens: u32::MAX, completion_tokens: 2, cached_tokens: 0 }));
        assert_eq!(Chunk::parse(r#"{"usage":{"prompt_tokens":"7"}}"#).unwrap().usage(), None);
    }
}
