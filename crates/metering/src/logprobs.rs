//! Log probabilities of a reply: collected up to the limits of the request, and encoded for idempotent replays.
//!
//! The encoding is a version byte, the number of tokens, and for each of them the token, the number of its alternatives
//! and the alternatives. A token is its length, its bytes and the bits of its log probability. Numbers are LEB128. So a
//! replay has exactly what the first reply had.

use crate::MeterError;
use crate::limits::{MAX_LOGPROB_TOKEN_BYTES, MAX_REPLY_LOGPROBS};
use chancery_engine::{TokenLogprob, TokenLogprobs};

/// Raised whenever the encoding changes.
const VERSION: u8 = 1;

/// Most tokens of a reply that reports this many likely tokens with each of them. Without log probabilities, any number.
pub(crate) fn max_output_tokens(top_logprobs: Option<u8>) -> u32 {
    top_logprobs.map_or(u32::MAX, |top| MAX_REPLY_LOGPROBS / (1 + u32::from(top)))
}

/// What was collected so far for one reply.
#[derive(Debug)]
pub(crate) struct CollectedLogprobs {
    /// `None` if the request asked for none.
    top_logprobs: Option<u8>,
    max_tokens: usize,
    tokens: Vec<TokenLogprobs>,
}

impl CollectedLogprobs {
    pub(crate) fn new(top_logprobs: Option<u8>, max_output_tokens: u32) -> Self {
        Self { top_logprobs, max_tokens: max_output_tokens as usize, tokens: Vec::new() }
    }

    /// Adds what the engine reports and returns the part that counts: never more tokens than the reply may have, never
    /// more alternatives than were asked for, no endless token, and nothing if nothing was asked for.
    pub(crate) fn add(&mut self, more: Vec<TokenLogprobs>) -> &[TokenLogprobs] {
        let Some(top_logprobs) = self.top_logprobs else { return &[] };
        let earlier = self.tokens.len();
        let room = self.max_tokens.saturating_sub(earlier);
        self.tokens.extend(more.into_iter().take(room).map(|mut token| {
            token.top.truncate(usize::from(top_logprobs));
            for one in token.top.iter_mut().chain([&mut token.token]) {
                one.bytes.truncate(MAX_LOGPROB_TOKEN_BYTES);
            }
            token
        }));
        &self.tokens[earlier..]
    }

    /// `None` if the request asked for none.
    pub(crate) fn into_reply(self) -> Option<Vec<TokenLogprobs>> {
        self.top_logprobs.map(|_| self.tokens)
    }
}

pub(crate) fn encode(tokens: &[TokenLogprobs]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    put_count(&mut bytes, tokens.len());
    for TokenLogprobs { token, top } in tokens {
        put_token(&mut bytes, token);
        put_count(&mut bytes, top.len());
        for alternative in top {
            put_token(&mut bytes, alternative);
        }
    }
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<TokenLogprobs>, MeterError> {
    let damaged = || MeterError::Internal("the log probabilities of a stored reply are damaged".to_owned());
    let mut reader = Reader(bytes);
    let tokens = reader.tokens().ok_or_else(damaged)?;
    if reader.0.is_empty() { Ok(tokens) } else { Err(damaged()) }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    let mut rest = count;
    while rest >= 0x80 {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

fn put_token(bytes: &mut Vec<u8>, token: &TokenLogprob) {
    put_count(bytes, token.bytes.len());
    bytes.extend_from_slice(&token.bytes);
    bytes.extend_from_slice(&token.logprob.to_le_bytes());
}

/// What is not read yet. Every read returns `None` if the bytes are damaged.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn tokens(&mut self) -> Option<Vec<TokenLogprobs>> {
        if self.byte()? != VERSION {
            return None;
        }
        let count = self.count()?;
        (0..count)
            .map(|_| {
                let token = self.token()?;
                let alternatives = self.count()?;
                let top = (0..alternatives).map(|_| self.token()).collect::<Option<_>>()?;
                Some(TokenLogprobs { token, top })
            })
            .collect()
    }

    fn token(&mut self) -> Option<TokenLogprob> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        let (logprob, rest) = rest.split_first_chunk()?;
        self.0 = rest;
        Some(TokenLogprob { bytes: bytes.to_vec(), logprob: f32::from_le_bytes(*logprob) })
    }

    fn count(&mut self) -> Option<usize> {
        let mut count = 0_usize;
        for shift in (0..u32::BITS).step_by(7) {
            let byte = self.byte()?;
            count |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(count);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(bytes: &[u8], logprob: f32) -> TokenLogprob {
        TokenLogprob { bytes: bytes.to_vec(), logprob }
    }

    fn tokens() -> Vec<TokenLogprobs> {
        vec![
            TokenLogprobs {
                token: token(b"Dear", -0.25),
                top: vec![token(b"Dear", -0.25), token(b"\xc3", -2.0)],
            },
            TokenLogprobs { token: token(&[b'x'; 300], f32::NEG_INFINITY), top: Vec::new() },
        ]
    }

    #[test]
    fn encoded_logprobs_round_trip_exactly() {
        for tokens in [Vec::new(), tokens()] {
            assert_eq!(decode(&encode(&tokens)).unwrap(), tokens);
        }
    }

    #[test]
    fn damaged_logprobs_are_an_error() {
        let encoded = encode(&tokens());
        for length in 0..encoded.len() {
            assert!(decode(&encoded[..length]).is_err(), "{length}");
        }
        assert!(decode(&[encoded.as_slice(), b"x"].concat()).is_err());
        assert!(decode(&[&[VERSION + 1][..], &encoded[1..]].concat()).is_err());
    }

    #[test]
    fn no_more_is_collected_than_the_request_may_have() {
        let mut none = CollectedLogprobs::new(None, 8);
        assert!(none.add(tokens()).is_empty());
        assert_eq!(none.into_reply(), None);
        let mut one = CollectedLogprobs::new(Some(1), 1);
        let first = TokenLogprobs { token: token(b"Dear", -0.25), top: vec![token(b"Dear", -0.25)] };
        assert_eq!(one.add(tokens()), std::slice::from_ref(&first));
        assert!(one.add(tokens()).is_empty());
        assert_eq!(one.into_reply(), Some(vec![first]));
        let mut long = CollectedLogprobs::new(Some(1), 1);
        let endless = token(&[b'x'; 100_000], -0.25);
        let added = long.add(vec![TokenLogprobs { token: endless.clone(), top: vec![endless] }]);
        assert_eq!(added[0].token.bytes.len(), MAX_LOGPROB_TOKEN_BYTES);
        assert_eq!(added[0].top[0].bytes.len(), MAX_LOGPROB_TOKEN_BYTES);
    }

    proptest! {
        #[test]
        fn decoder_never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
