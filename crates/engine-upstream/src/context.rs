//! Reads a model's context length, and its owner, from the server's list of models. OpenAI's API has no field for the
//! length, so each kind of server has its own.

use serde::Deserialize;

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelEntry>,
}

#[derive(Deserialize)]
struct ModelEntry {
    id: String,
    /// Names the kind of server: `vllm`, `sglang`, `llamacpp`.
    #[serde(default)]
    owned_by: Option<String>,
    /// vLLM and SGLang.
    #[serde(default)]
    max_model_len: Option<u32>,
    /// Chancery itself, for a node behind another.
    #[serde(default)]
    context_tokens: Option<u32>,
    /// Some gateways.
    #[serde(default)]
    context_length: Option<u32>,
    /// llama-server.
    #[serde(default)]
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    n_ctx: Option<u32>,
}

/// Returns `None` if the list does not say, or cannot be parsed.
pub(super) fn context_tokens(list: &[u8], upstream_model: &str) -> Option<u32> {
    let entry = entry(list, upstream_model)?;
    let meta_tokens = entry.meta.as_ref().and_then(|meta| meta.n_ctx);
    entry
        .max_model_len
        .or(entry.context_tokens)
        .or(entry.context_length)
        .or(meta_tokens)
        .filter(|tokens| *tokens > 0)
}

/// Returns the `owned_by` of the model.
pub(super) fn owner(list: &[u8], upstream_model: &str) -> Option<String> {
    entry(list, upstream_model)?.owned_by
}

fn entry(list: &[u8], upstream_model: &str) -> Option<ModelEntry> {
    let ModelList { mut data } = serde_json::from_slice(list).ok()?;
    let index = match data.iter().position(|entry| entry.id == upstream_model) {
        Some(index) => index,
        None if data.len() == 1 => 0,
        None => return None,
    };
    Some(data.swap_remove(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_length_is_read_from_every_server_format() {
        for (entry, expected) in [
            (r#"{"id":"m","object":"model","max_model_len":32768}"#, Some(32_768)),
            (r#"{"id":"m","context_tokens":8192,"currency":"USD"}"#, Some(8_192)),
            (r#"{"id":"other","meta":{"n_ctx":4096,"n_ctx_train":131072}}"#, Some(4_096)),
            (r#"{"id":"m","max_model_len":null}"#, None),
            (r#"{"id":"m"}"#, None),
        ] {
            let list = format!(r#"{{"object":"list","data":[{entry}]}}"#);
            assert_eq!(context_tokens(list.as_bytes(), "m"), expected, "{entry}");
        }
        assert_eq!(context_tokens(b"<html>", "m"), None);
        let two = br#"{"data":[{"id":"a","max_model_len":1},{"id":"b","max_model_len":2}]}"#;
        assert_eq!(context_tokens(two, "b"), Some(2));
        assert_eq!(context_tokens(two, "c"), None);
    }
}
