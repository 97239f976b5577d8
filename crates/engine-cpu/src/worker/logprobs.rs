//! Log probabilities of the tokens of one reply, for a job that asks for them. They are taken from the model's own logits,
//! before penalties, temperature and filters. A token is reported once all of its text was emitted; tokens of a stop
//! string, which is left out of the reply, are not reported.

use crate::detokenizer::Detokenizer;
use crate::tokenizer::Tokenizer;
use chancery_engine::{GenerationSink, MAX_TOP_LOGPROBS, TokenLogprob, TokenLogprobs};
use std::collections::VecDeque;

/// Reported for tokens that are even less likely, or impossible; OpenAI's value.
const MIN_LOGPROB: f64 = -9999.0;

#[derive(Debug)]
pub struct LogprobState {
    top_count: usize,
    /// The model's logits for the next token.
    logits: Vec<f32>,
    /// Tokens whose text was not emitted yet, in order.
    pending: VecDeque<PendingToken>,
}

/// Positions are in bytes of the reply's text.
#[derive(Debug)]
struct PendingToken {
    logprobs: TokenLogprobs,
    start: usize,
    /// `None` while the token's last character is incomplete.
    end: Option<usize>,
}

impl LogprobState {
    pub fn new(top_count: u8) -> Self {
        Self {
            top_count: usize::from(top_count.min(MAX_TOP_LOGPROBS)),
            logits: Vec::new(),
            pending: VecDeque::new(),
        }
    }

    /// Keeps a copy of the row, because sampling changes it.
    pub fn save_logits(&mut self, logits: &[f32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
    }

    /// The log probabilities at the saved row. Control tokens have no bytes.
    pub fn of(&self, token: u32, tokenizer: &Tokenizer) -> TokenLogprobs {
        let top_logit = self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = self.logits.iter().filter(|logit| !logit.is_nan());
        let ln_total = weights.map(|logit| f64::from((logit - top_logit).exp())).sum::<f64>().ln();
        let logprob_of = |token: u32, logit: f32| TokenLogprob {
            bytes: tokenizer.token_bytes(token).to_vec(),
            // `max` returns the other operand if one is NaN.
            logprob: (f64::from(logit) - f64::from(top_logit) - ln_total).max(MIN_LOGPROB) as f32,
        };
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        TokenLogprobs {
            token: logprob_of(token, logit),
            top: self.top_tokens().into_iter().map(|(logit, token)| logprob_of(token, logit)).collect(),
        }
    }

    /// The most likely tokens, in order; among equals, lowest id first.
    fn top_tokens(&self) -> Vec<(f32, u32)> {
        let mut top: Vec<(f32, u32)> = Vec::with_capacity(self.top_count + 1);
        for (token, logit) in (0_u32..).zip(&self.logits) {
            let is_among_top = match top.last() {
                Some((lowest, _)) if top.len() == self.top_count => logit > lowest,
                _ => self.top_count > 0 && !logit.is_nan(),
            };
            if is_among_top {
                let rank = top.partition_point(|(other, _)| other >= logit);
                top.insert(rank, (*logit, token));
                top.truncate(self.top_count);
            }
        }
        top
    }

    /// Adds a token that was just pushed to `text`, which had decoded `start` bytes before.
    pub fn push(&mut self, logprobs: TokenLogprobs, start: usize, text: &Detokenizer) {
        let decoded = text.decoded_bytes();
        // What is incomplete now belongs to this token alone if it is no longer than this token.
        if text.partial_bytes() <= logprobs.token.bytes.len() {
            for pending in self.pending.iter_mut().rev().take_while(|pending| pending.end.is_none()) {
                pending.end = Some(decoded);
            }
        }
        let end = (text.partial_bytes() == 0).then_some(decoded);
        self.pending.push_back(PendingToken { logprobs, start, end });
    }

    /// Reports the tokens whose text was emitted.
    pub fn report(&mut self, text: &Detokenizer, sink: &GenerationSink) {
        let emitted = text.emitted_bytes();
        let is_emitted = |pending: &&PendingToken| pending.end.is_some_and(|end| end <= emitted);
        let count = self.pending.iter().take_while(is_emitted).count();
        if count > 0 {
            sink.logprobs(self.pending.drain(..count).map(|pending| pending.logprobs));
        }
    }

    /// Reports the rest of the tokens of a reply whose text has `reply_bytes`: those that have a part in it.
    pub fn report_rest(self, reply_bytes: usize, sink: &GenerationSink) {
        let is_in_reply = |pending: &PendingToken| {
            pending.start < reply_bytes || pending.end.is_some_and(|end| end <= reply_bytes)
        };
        let mut rest = self.pending.into_iter().filter(is_in_reply).peekable();
        if rest.peek().is_some() {
            sink.logprobs(rest.map(|pending| pending.logprobs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_engine::{Event, Finished, Generation, StopReason};
    use proptest::prelude::*;

    fn token(bytes: &[u8]) -> TokenLogprobs {
        TokenLogprobs { token: TokenLogprob { bytes: bytes.to_vec(), logprob: -1.0 }, top: Vec::new() }
    }

    /// Takes the text and the bytes of the reported tokens so far; the generation must have an event after them.
    async fn take_all(generation: &mut Generation) -> (String, Vec<Vec<u8>>) {
        let (mut text, mut tokens) = (String::new(), Vec::new());
        loop {
            match generation.next().await.unwrap() {
                Event::Text(more) => text += &more,
                Event::Logprobs(more) => tokens.extend(more.into_iter().map(|logprobs| logprobs.token.bytes)),
                Event::Finished(_) => return (text, tokens),
                event @ Event::Reasoning(_) => panic!("{event:?}"),
            }
        }
    }

    /// Pushes the pieces as a sequence does; returns the text, the tokens reported before the end, and all of them.
    async fn reply(stops: &[String], pieces: &[Vec<u8>]) -> (String, usize, Vec<Vec<u8>>) {
        let (sink, mut generation) = chancery_engine::channel();
        let (mut detokenizer, mut state) = (Detokenizer::new(stops), LogprobState::new(0));
        let mut is_stopped = false;
        for piece in pieces {
            let start = detokenizer.decoded_bytes();
            let emitted = detokenizer.push(piece);
            sink.text(emitted.text);
            is_stopped = emitted.stopped;
            state.push(token(piece), start, &detokenizer);
            if is_stopped {
                break;
            }
            state.report(&detokenizer, &sink);
        }
        let pending = state.pending.len();
        if !is_stopped {
            sink.text(detokenizer.pending_text());
        }
        let reply_bytes = if is_stopped { detokenizer.emitted_bytes() } else { detokenizer.decoded_bytes() };
        state.report_rest(reply_bytes, &sink);
        sink.end(Finished {
            reason: StopReason::Complete,
            output_tokens: 0,
            cached_tokens: 0,
            billed_cached_tokens: 0,
            reasoning_tokens: 0,
            prefilled_tokens: 0,
            input_tokens: None,
        });
        let (text, tokens) = take_all(&mut generation).await;
        (text, pending, tokens)
    }

    fn pieces(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        pieces.iter().map(|piece| piece.to_vec()).collect()
    }

    #[tokio::test]
    async fn tokens_of_a_stop_string_are_not_reported() {
        let stops = ["END".to_owned()];
        let (text, _, tokens) = reply(&stops, &pieces(&[b"one", b" E", b"N", b"D two"])).await;
        assert_eq!(
            (text.as_str(), tokens),
            ("one ", pieces(&[b"one", b" E"])),
            "a part of ` E` is in the reply"
        );
        let (text, _, tokens) = reply(&stops, &pieces(&[b"one ", b"E", b"ND"])).await;
        assert_eq!((text.as_str(), tokens), ("one ", pieces(&[b"one "])));
    }

    #[tokio::test]
    async fn withheld_tokens_are_reported_with_their_text() {
        let stops = ["END".to_owned()];
        let (text, pending, tokens) = reply(&stops, &pieces(&[b"one", b" E", b"N"])).await;
        assert_eq!((text.as_str(), pending, tokens.len()), ("one EN", 2, 3));
        let (text, pending, tokens) = reply(&stops, &pieces(&[b"one", b" E", b"N", b"T"])).await;
        assert_eq!((text.as_str(), pending, tokens.len()), ("one ENT", 0, 4));
    }

    #[tokio::test]
    async fn tokens_of_an_incomplete_character_wait_for_it() {
        let [first, second] = [&"é".as_bytes()[..1], &"é".as_bytes()[1..]];
        let (text, pending, tokens) = reply(&[], &pieces(&[b"caf", first, second])).await;
        assert_eq!((text.as_str(), pending, tokens.len()), ("café", 0, 3));
        let (text, pending, tokens) = reply(&[], &pieces(&[b"caf", first])).await;
        assert_eq!(
            (text.as_str(), pending, tokens.len()),
            ("caf", 1, 1),
            "an unfinished character is dropped"
        );
        let (_, _, tokens) = reply(&["é".to_owned()], &pieces(&[b"caf", first, second])).await;
        assert_eq!(tokens, pieces(&[b"caf"]));
    }

    #[tokio::test]
    async fn tokens_without_text_are_reported_in_their_place() {
        assert_eq!(reply(&[], &pieces(&[b"a", b"", b"b"])).await.2, pieces(&[b"a", b"", b"b"]));
    }

    #[test]
    fn top_tokens_are_in_order_and_lowest_first_among_equals() {
        let mut state = LogprobState::new(3);
        state.save_logits(&[0.5, 2.0, f32::NAN, 2.0, -1.0, 3.0]);
        let ids: Vec<u32> = state.top_tokens().into_iter().map(|(_, id)| id).collect();
        assert_eq!(ids, [5, 1, 3]);
        assert!(LogprobState { top_count: 0, ..state }.top_tokens().is_empty());
    }

    proptest! {
        #[test]
        fn reported_tokens_are_those_that_start_within_the_reply(
            tokens in proptest::collection::vec("[ab]{1,3}", 0..20),
            stops in proptest::collection::vec("[ab]{2,5}", 0..3),
        ) {
            let pieces: Vec<Vec<u8>> = tokens.into_iter().map(String::into_bytes).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (text, _, reported) = runtime.block_on(reply(&stops, &pieces));
            let mut start = 0;
            let within = pieces.iter().take_while(|piece| {
                let is_within = start < text.len();
                start += piece.len();
                is_within
            });
            prop_assert_eq!(reported, within.cloned().collect::<Vec<_>>());
        }
    }
}
