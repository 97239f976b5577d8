//! Sampling fields that not every server knows, or that servers know by other names: penalties, DRY and log probabilities.
//! Each is sent only where a job asks for it, so that other requests stay as they are. A server that is known to ignore
//! one does not get the job; a server that rejects one is quoted to the caller (`error_response`). Deliberately leaves the
//! loop detector of `stop_on_repetition` to this process (`repetition_watch`): no two servers have the same.

use super::capabilities::ServerKind;
use super::error::UpstreamError;
use chancery_engine::{Job, Penalties};
use serde::Serialize;
use std::cmp::Ordering;

/// The whole context, in llama-server's counts of tokens to look back.
const WHOLE_CONTEXT: i32 = -1;

/// A field as callers name it, with the names that servers may use for it in an error message.
struct SamplingField {
    name: &'static str,
    server_names: &'static [&'static str],
    is_set: fn(&Job) -> bool,
}

/// A name that contains another one precedes it.
static FIELDS: [SamplingField; 6] = [
    SamplingField {
        name: "frequency_penalty",
        server_names: &["frequency_penalty"],
        is_set: |job| differs(job.sampling.penalties.frequency, Penalties::NONE.frequency),
    },
    SamplingField {
        name: "presence_penalty",
        server_names: &["presence_penalty"],
        is_set: |job| differs(job.sampling.penalties.presence, Penalties::NONE.presence),
    },
    SamplingField {
        name: "repetition_penalty",
        server_names: &["repetition_penalty", "repeat_penalty", "repeat_last_n"],
        is_set: has_repetition_penalty,
    },
    SamplingField {
        name: "dry_multiplier",
        server_names: &["dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"],
        is_set: has_dry,
    },
    SamplingField {
        name: "top_logprobs",
        server_names: &["top_logprobs"],
        is_set: |job| job.top_logprobs.is_some_and(|count| count > 0),
    },
    SamplingField {
        name: "logprobs",
        server_names: &["logprobs", "top_logprobs"],
        is_set: |job| job.top_logprobs.is_some(),
    },
];

/// The names of sampling fields in an error response, as the server has them.
pub(super) fn names_in(error_body: &str) -> Vec<&'static str> {
    let names = FIELDS.iter().flat_map(|field| field.server_names.iter().copied());
    names.filter(|name| error_body.contains(*name)).collect()
}

/// The first field of the job that an error response names, as callers name it.
pub(super) fn rejected_field(named_params: &[&str], job: &Job) -> Option<&'static str> {
    let is_named = |field: &SamplingField| field.server_names.iter().any(|name| named_params.contains(name));
    FIELDS.iter().find(|field| is_named(field) && (field.is_set)(job)).map(|field| field.name)
}

/// Part of the body of a request.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct SamplingParams {
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
    /// llama-server's name, and how many of the last tokens it counts for: by default only a few.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeat_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeat_last_n: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_multiplier: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_base: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_allowed_length: Option<u32>,
    /// llama-server: how many of the last tokens are searched for repeated sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_penalty_last_n: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<u8>,
}

impl SamplingParams {
    pub(super) fn new(job: &Job, kind: ServerKind) -> Self {
        let Penalties { repetition, frequency, presence, dry } = job.sampling.penalties;
        let is_llama_server = kind == ServerKind::LlamaServer;
        let mut params = Self {
            frequency_penalty: differs(frequency, Penalties::NONE.frequency).then_some(frequency),
            presence_penalty: differs(presence, Penalties::NONE.presence).then_some(presence),
            ..Self::default()
        };
        if has_repetition_penalty(job) {
            if is_llama_server {
                params.repeat_penalty = Some(repetition);
                params.repeat_last_n = Some(WHOLE_CONTEXT);
            } else {
                params.repetition_penalty = Some(repetition);
            }
        }
        if has_dry(job) {
            params.dry_multiplier = Some(dry.multiplier);
            params.dry_base = Some(dry.base);
            params.dry_allowed_length = Some(dry.allowed_length);
            params.dry_penalty_last_n = is_llama_server.then_some(WHOLE_CONTEXT);
        }
        if let Some(top) = job.top_logprobs {
            params.logprobs = Some(true);
            // llama-server reports nothing at all for 0. Where one alternative came unasked, it is left out again.
            params.top_logprobs = Some(if is_llama_server { top.max(1) } else { top });
        }
        params
    }
}

/// Whether the kind of server decides how the job is sent, or if it is.
pub(super) fn is_kind_dependent(job: &Job) -> bool {
    has_repetition_penalty(job) || has_dry(job) || job.top_logprobs == Some(0)
}

/// Why a server of this kind cannot run the job: it would ignore one of its fields.
pub(super) fn unsupported(job: &Job, kind: ServerKind) -> Option<UpstreamError> {
    let ignored = match kind {
        ServerKind::Vllm | ServerKind::Sglang => has_dry(job).then_some("dry_multiplier"),
        ServerKind::Ollama if has_repetition_penalty(job) => Some("repetition_penalty"),
        ServerKind::Ollama => has_dry(job).then_some("dry_multiplier"),
        ServerKind::LlamaServer | ServerKind::Other => None,
    };
    let instead = match kind {
        ServerKind::Vllm | ServerKind::Sglang => "`repetition_penalty` or `frequency_penalty`",
        _ => "`frequency_penalty`",
    };
    let field = ignored?;
    Some(UpstreamError::unsupported_param(format!("it does not support `{field}`; use {instead} instead")))
}

/// The server sent text without log probabilities, although the job asked for them.
pub(super) fn missing_logprobs() -> UpstreamError {
    UpstreamError::unsupported_param("it sends no log probabilities; leave out `logprobs`")
}

fn has_repetition_penalty(job: &Job) -> bool {
    differs(job.sampling.penalties.repetition, Penalties::NONE.repetition)
}

fn has_dry(job: &Job) -> bool {
    !job.sampling.penalties.dry.is_none()
}

fn differs(value: f32, default: f32) -> bool {
    value.partial_cmp(&default) != Some(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::AccountId;
    use chancery_engine::{Dry, Prompt, PromptContent, Sampling, Turn};
    use std::sync::Arc;

    fn job(penalties: Penalties, top_logprobs: Option<u8>) -> Job {
        let content = PromptContent::Turns { turns: Arc::from(Vec::<Turn>::new()), prompt_tokens: 0 };
        Job {
            account: AccountId(1),
            prompt: Prompt { content, input_tokens: 0 },
            max_output_tokens: 16,
            sampling: Sampling { penalties, ..Sampling::GREEDY },
            stop: Vec::new(),
            stop_on_repetition: true,
            top_logprobs,
            needs_partial_text: true,
        }
    }

    fn sent(job: &Job, kind: ServerKind) -> String {
        serde_json::to_string(&SamplingParams::new(job, kind)).unwrap()
    }

    const ALL: Penalties = Penalties {
        repetition: 1.1,
        frequency: 0.5,
        presence: -0.5,
        dry: Dry { multiplier: 0.8, base: 1.75, allowed_length: 3 },
    };

    #[test]
    fn only_fields_that_differ_from_their_default_are_sent() {
        let idle_dry = Dry { multiplier: 0.0, base: 3.0, allowed_length: 9 };
        for kind in [ServerKind::Other, ServerKind::LlamaServer, ServerKind::Vllm] {
            assert_eq!(sent(&job(Penalties::NONE, None), kind), "{}");
            assert_eq!(sent(&job(Penalties { dry: idle_dry, ..Penalties::NONE }, None), kind), "{}");
        }
        let presence = Penalties { presence: 2.0, ..Penalties::NONE };
        assert_eq!(sent(&job(presence, None), ServerKind::Other), r#"{"presence_penalty":2.0}"#);
    }

    #[test]
    fn each_kind_of_server_gets_its_own_names() {
        assert_eq!(
            sent(&job(ALL, Some(0)), ServerKind::LlamaServer),
            r#"{"frequency_penalty":0.5,"presence_penalty":-0.5,"repeat_penalty":1.1,"repeat_last_n":-1,"dry_multiplier":0.8,"dry_base":1.75,"dry_allowed_length":3,"dry_penalty_last_n":-1,"logprobs":true,"top_logprobs":1}"#
        );
        assert_eq!(
            sent(&job(ALL, Some(0)), ServerKind::Other),
            r#"{"frequency_penalty":0.5,"presence_penalty":-0.5,"repetition_penalty":1.1,"dry_multiplier":0.8,"dry_base":1.75,"dry_allowed_length":3,"logprobs":true,"top_logprobs":0}"#
        );
    }

    #[test]
    fn server_that_would_ignore_a_field_does_not_get_the_job() {
        let repetition = Penalties { repetition: 1.1, ..Penalties::NONE };
        let dry = Penalties { dry: ALL.dry, ..Penalties::NONE };
        let others = Penalties { repetition: 1.0, dry: Dry::NONE, ..ALL };
        for (kind, penalties, field) in [
            (ServerKind::Vllm, dry, Some("`dry_multiplier`")),
            (ServerKind::Sglang, dry, Some("`dry_multiplier`")),
            (ServerKind::Ollama, dry, Some("`dry_multiplier`")),
            (ServerKind::Ollama, repetition, Some("`repetition_penalty`")),
            (ServerKind::Ollama, others, None),
            (ServerKind::Vllm, repetition, None),
            (ServerKind::Sglang, others, None),
            (ServerKind::LlamaServer, ALL, None),
            (ServerKind::Other, ALL, None),
        ] {
            let error = unsupported(&job(penalties, None), kind);
            let is_named =
                error.as_ref().map(|error| field.is_some_and(|field| error.detail.contains(field)));
            assert_eq!(is_named, field.map(|_| true), "{kind:?} {penalties:?}: {error:?}");
        }
    }

    #[test]
    fn error_names_the_callers_field_only_if_it_was_sent() {
        let named = |body: &str, penalties, top| rejected_field(&names_in(body), &job(penalties, top));
        assert_eq!(named("unknown field repeat_penalty", ALL, None), Some("repetition_penalty"));
        assert_eq!(named("unknown field repeat_penalty", Penalties::NONE, None), None);
        assert_eq!(named("top_logprobs is too large", ALL, Some(5)), Some("top_logprobs"));
        assert_eq!(named("top_logprobs is not supported", ALL, Some(0)), Some("logprobs"));
        assert_eq!(named("logprobs are not supported", ALL, Some(5)), Some("logprobs"));
        assert_eq!(named("bad request", ALL, Some(5)), None);
    }
}
