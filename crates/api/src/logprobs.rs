//! The log probabilities of a reply's tokens as JSON, in OpenAI's shape, which all replies share.

use std::borrow::Cow;

/// Stands for everything less likely, as in OpenAI's API: JSON has no infinity.
const MIN_LOGPROB: f32 = -9999.0;

/// A token of the text, and the tokens that were most likely at its position.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct TokenLogprobs<'a> {
    /// The token as text, with U+FFFD for bytes that are not a whole character.
    #[schema(value_type = String, examples("Dear"))]
    token: Cow<'a, str>,
    /// The exact bytes of the token. A character may be spread over several tokens.
    #[schema(value_type = Vec<u32>)]
    bytes: &'a [u8],
    /// The natural logarithm of the token's probability, before temperature, filters and penalties.
    logprob: f32,
    /// As many as `top_logprobs` asks for, the most likely first. They may include the token itself.
    top_logprobs: Vec<TokenLogprob<'a>>,
}

/// A token that could have come.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct TokenLogprob<'a> {
    /// The token as text, with U+FFFD for bytes that are not a whole character.
    #[schema(value_type = String, examples("Hello"))]
    token: Cow<'a, str>,
    /// The exact bytes of the token.
    #[schema(value_type = Vec<u32>)]
    bytes: &'a [u8],
    /// The natural logarithm of the token's probability.
    logprob: f32,
}

/// The log probabilities of all these tokens.
pub(crate) fn of(tokens: &[chancery_engine::TokenLogprobs]) -> Vec<TokenLogprobs<'_>> {
    tokens.iter().map(TokenLogprobs::of).collect()
}

impl<'a> TokenLogprobs<'a> {
    fn of(position: &'a chancery_engine::TokenLogprobs) -> Self {
        let TokenLogprob { token, bytes, logprob } = TokenLogprob::of(&position.token);
        Self { token, bytes, logprob, top_logprobs: position.top.iter().map(TokenLogprob::of).collect() }
    }
}

impl<'a> TokenLogprob<'a> {
    fn of(token: &'a chancery_engine::TokenLogprob) -> Self {
        Self {
            token: String::from_utf8_lossy(&token.bytes),
            bytes: &token.bytes,
            logprob: token.logprob.max(MIN_LOGPROB),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_characters_and_impossible_tokens_are_valid_json() {
        let token = |bytes: &[u8], logprob| chancery_engine::TokenLogprob { bytes: bytes.to_vec(), logprob };
        let tokens = [chancery_engine::TokenLogprobs {
            token: token(b"\xc3", -0.25),
            top: vec![token("é".as_bytes(), 0.0), token(b"", f32::NEG_INFINITY)],
        }];
        assert_eq!(
            serde_json::to_string(&of(&tokens)).unwrap(),
            "[{\"token\":\"\u{fffd}\",\"bytes\":[195],\"logprob\":-0.25,\"top_logprobs\":[\
             {\"token\":\"é\",\"bytes\":[195,169],\"logprob\":0.0},\
             {\"token\":\"\",\"bytes\":[],\"logprob\":-9999.0}]}]"
        );
    }
}
