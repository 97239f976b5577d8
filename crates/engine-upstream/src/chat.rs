//! Chat Completions as spoken to upstream servers: the request body of a job. `chunk` reads the replies.

use super::capabilities::ServerKind;
use super::error::UpstreamError;
use super::sampling_params::SamplingParams;
use chancery_engine::{Job, Turn};
use hyper::body::Bytes;
use serde::Serialize;

/// vLLM's option to report the usage so far with every chunk.
pub(super) const CONTINUOUS_USAGE_OPTION: &str = "continuous_usage_stats";

/// What a body has beside its texts, roughly.
const BODY_OVERHEAD_BYTES: usize = 512;

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
    /// Asks for a whole reply, which is recognized by this while it runs (`progress`). `None`: for a stream.
    pub(super) whole_tag: Option<u32>,
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
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
) -> Result<Bytes, UpstreamError> {
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
        // Servers expect a signed integer. Greedy decoding needs no seed, so there it can be a tag.
        seed: match is_sampled {
            true => Some(sampling.seed & i64::MAX.cast_unsigned()),
            false => options.whole_tag.map(u64::from),
        },
        stop: &job.stop,
        sampling_params: SamplingParams::new(job, options.server_kind),
        stream: options.whole_tag.is_none(),
        stream_options: options.whole_tag.is_none().then_some(StreamOptions {
            include_usage: true,
            continuous_usage_stats: options.has_continuous_usage,
        }),
        cache_salt: options.has_cache_salt.then_some(cache_salt),
    };
    let text_bytes: usize = turns.iter().map(|turn| turn.text.len()).sum();
    let mut bytes = Vec::with_capacity(text_bytes + text_bytes / 8 + BODY_OVERHEAD_BYTES);
    serde_json::to_writer(&mut bytes, &body)
        .map_err(|error| UpstreamError::server_failure(format!("cannot serialize the request: {error}")))?;
    Ok(bytes.into())
}
