//! Token counts from a server's own `/tokenize`, for replies without a usage report. vLLM and SGLang share one format;
//! llama-server has another. A text is counted without special tokens, as with a local tokenizer.

use super::endpoint::Endpoint;
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{MAX_TOKENIZE_OVERHEAD_BYTES, MAX_TOKENIZE_RESPONSE_RATIO, TOKENIZE_TIMEOUT};
use super::transport::Transport;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

const PROBE_TEXT: &str = "word";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenizeFormat {
    /// vLLM and SGLang: `prompt`, answered by `count`.
    Prompt,
    /// llama-server: `content`, answered by `tokens`. It answers any other format with no tokens.
    Content,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Request<'a> {
    Prompt { model: &'a str, prompt: &'a str, add_special_tokens: bool },
    Content { model: &'a str, content: &'a str, add_special: bool, parse_special: bool },
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    count: Option<u32>,
    #[serde(default)]
    tokens: Option<Vec<IgnoredAny>>,
}

impl TokenizeFormat {
    fn body(self, model: &str, text: &str) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&match self {
            Self::Prompt => Request::Prompt { model, prompt: text, add_special_tokens: false },
            Self::Content => {
                Request::Content { model, content: text, add_special: false, parse_special: false }
            }
        })
    }

    fn parse(self, body: &[u8]) -> Option<u32> {
        let response: Response = serde_json::from_slice(body).ok()?;
        match self {
            Self::Prompt => response.count,
            Self::Content => u32::try_from(response.tokens?.len()).ok(),
        }
    }
}

/// Returns the format that the server accepts, or `None` if it has no `/tokenize` for this side.
pub(super) async fn probe(
    transport: &Transport,
    endpoint: &Endpoint,
    model: &str,
) -> Result<Option<TokenizeFormat>, UpstreamError> {
    for format in [TokenizeFormat::Prompt, TokenizeFormat::Content] {
        match count(transport, endpoint, model, format, PROBE_TEXT).await {
            Ok(tokens) if tokens > 0 => return Ok(Some(format)),
            Ok(_) => {}
            Err(error) if is_missing(&error) => {}
            // The server is not there, hangs or still loads its model: that says nothing about what it has.
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Also true of a response that is no count.
fn is_missing(error: &UpstreamError) -> bool {
    match &error.error_response {
        Some(_) => error.is_missing_path(),
        None => error.kind == UpstreamErrorKind::ServerFailure,
    }
}

pub(super) async fn count(
    transport: &Transport,
    endpoint: &Endpoint,
    model: &str,
    format: TokenizeFormat,
    text: &str,
) -> Result<u32, UpstreamError> {
    let invalid = || UpstreamError::server_failure("invalid /tokenize response");
    let body =
        format.body(model, text).map_err(|_| UpstreamError::server_failure("cannot serialize a text"))?;
    let max_bytes =
        text.len().saturating_mul(MAX_TOKENIZE_RESPONSE_RATIO).saturating_add(MAX_TOKENIZE_OVERHEAD_BYTES);
    let authorization = endpoint.authorization();
    let address = endpoint.address(authorization.as_ref());
    let counting = transport.post_to_root(address, "/tokenize", body, max_bytes);
    let timed_out = |_| UpstreamError::new(UpstreamErrorKind::TimedOut, "no /tokenize response in time");
    let response = timeout(TOKENIZE_TIMEOUT, counting).await.map_err(timed_out)??;
    format.parse(&response).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_in_the_other_format_is_no_count() {
        let vllm = br#"{"count":3,"max_model_len":4096,"tokens":[1,2,3],"token_strs":null}"#;
        let llama = br#"{"tokens":[1,2,3]}"#;
        assert_eq!(TokenizeFormat::Prompt.parse(vllm), Some(3));
        assert_eq!(TokenizeFormat::Prompt.parse(llama), None);
        assert_eq!(TokenizeFormat::Content.parse(llama), Some(3));
        assert_eq!(TokenizeFormat::Content.parse(b"<html>"), None);
    }
}
