//! One running generation: its tokens, how many are computed, and how sampled tokens become text.

use super::logprobs::LogprobState;
use crate::detokenizer::Detokenizer;
use crate::forward::BatchEntry;
use crate::kernels::LogitStats;
use crate::paging::{PageAllocator, PageTable};
use crate::penalties::{PenaltyState, is_dry_breaker};
use crate::prefix_cache::PageKey;
use crate::sampler::{Sampler, SamplerScratch};
use crate::scheduler::PendingWork;
use crate::speculation::DraftState;
use crate::tokenizer::Tokenizer;
use chancery_domain::AccountId;
use chancery_engine::{GenerationSink, Job, RepetitionDetector, StopReason};
use std::time::Instant;

pub struct Sequence {
    pub account: AccountId,
    /// What its account paid for it in the queue, in tokens.
    pub charged: u32,
    pub sink: GenerationSink,
    /// The prompt, then the generated tokens, and during a step the drafted ones.
    pub tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose keys and values are in the KV cache.
    pub computed: usize,
    /// Prompt tokens that came from the prefix cache.
    pub cached_prompt_tokens: usize,
    /// Those of them that were billed before, to other requests. Known once it is billed itself.
    pub billed_cached_tokens: usize,
    pub generated: u32,
    /// Maximum number of generated tokens, and the stop reason when it is reached.
    limit: u32,
    limit_reason: StopReason,
    pub pages: PageTable,
    sampler: Sampler,
    /// `None` if the job has no penalties.
    penalties: Option<PenaltyState>,
    /// `None` if a loop does not end the reply.
    repetition: Option<RepetitionDetector>,
    /// `None` if the job does not ask for log probabilities.
    logprobs: Option<LogprobState>,
    pub draft_state: DraftState,
    /// How many of the last tokens are drafted.
    drafted: usize,
    text: Detokenizer,
    pub started: Instant,
}

/// What a job gets when it starts.
pub struct SequenceStart {
    pub account: AccountId,
    pub charged: u32,
    pub sink: GenerationSink,
    pub pages: PageTable,
    pub started: Instant,
}

impl Sequence {
    pub fn new(job: &Job, context_tokens: usize, start: SequenceStart) -> Self {
        let SequenceStart { account, charged, sink, pages, started } = start;
        let (limit, limit_reason) = reply_limit(job, context_tokens);
        let prompt = job.prompt.token_ids();
        // Capacity for all tokens it may ever hold, so that it never reallocates.
        let max_tokens = prompt.len() + limit as usize;
        let mut tokens = Vec::with_capacity(max_tokens);
        tokens.extend_from_slice(prompt);
        Self {
            account,
            charged,
            sink,
            tokens,
            prompt_tokens: prompt.len(),
            computed: 0,
            cached_prompt_tokens: 0,
            billed_cached_tokens: 0,
            generated: 0,
            limit,
            limit_reason,
            pages,
            sampler: Sampler::new(job.sampling),
            penalties: PenaltyState::new(job.sampling.penalties, prompt, max_tokens),
            repetition: job.stop_on_repetition.then(|| RepetitionDetector::new(limit as usize)),
            logprobs: job.top_logprobs.map(LogprobState::new),
            draft_state: DraftState::default(),
            drafted: 0,
            text: Detokenizer::new(&job.stop),
            started,
        }
    }

    fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_tokens]
    }

    pub fn remaining_prompt(&self) -> usize {
        self.prompt_tokens.saturating_sub(self.computed)
    }

    pub fn pending(&self) -> PendingWork<PageKey> {
        let remaining_prompt = self.remaining_prompt();
        let next_page =
            if remaining_prompt > 0 { self.pages.next_cache_key(self.account, self.prompt()) } else { None };
        PendingWork { remaining_prompt, next_page }
    }

    /// Takes the next pages of the prompt from the prefix cache, if it has them.
    pub fn reuse_cached(&mut self, allocator: &mut PageAllocator) {
        let prompt = &self.tokens[..self.prompt_tokens];
        let computed = allocator.reuse_cached(&mut self.pages, self.account, prompt, self.computed);
        self.cached_prompt_tokens += computed - self.computed;
        self.computed = computed;
    }

    /// Called after it sampled: with its first token, or an end without any, it is billed however it ends. Until then its
    /// caller may hang up and pay nothing, so its pages give no discount.
    pub fn mark_billed(&mut self, allocator: &mut PageAllocator) {
        if !self.pages.is_billed() {
            self.billed_cached_tokens = allocator.mark_billed(&mut self.pages);
        }
    }

    /// Prompt tokens computed for this sequence, as opposed to taken from the prefix cache.
    pub fn prefilled_tokens(&self) -> u32 {
        let prompt = self.computed.min(self.prompt_tokens) - self.cached_prompt_tokens;
        u32::try_from(prompt).unwrap_or(u32::MAX)
    }

    /// Tokens of work: prompt tokens computed, plus tokens generated.
    pub fn used_tokens(&self) -> u32 {
        self.prefilled_tokens().saturating_add(self.generated)
    }

    /// Whether it could use rows for drafts in this step. Not if tokens are sampled, because then earlier tokens do not
    /// determine the next one, not if its rows are prepared one by one, and not if at most one more token may follow.
    pub fn can_draft(&self) -> bool {
        self.remaining_prompt() == 0
            && self.temperature() <= 0.0
            && !self.prepares_logits()
            && self.draft_limit() > 0
            && self.draft_state.is_ready()
    }

    /// Every accepted draft token also yields the token after it, and the limit applies to all of them.
    fn draft_limit(&self) -> usize {
        (self.limit - self.generated).saturating_sub(1) as usize
    }

    /// Appends up to `max_drafts` drafted tokens if it may; returns how many.
    pub fn draft(&mut self, max_drafts: usize) -> usize {
        if self.can_draft() {
            let max_drafts = max_drafts.min(self.draft_limit());
            self.drafted = self.draft_state.draft(&mut self.tokens, max_drafts);
        } else {
            self.draft_state.skip_step();
        }
        self.drafted
    }

    /// The temperature for the softmax of its rows.
    pub fn temperature(&self) -> f32 {
        self.sampler.temperature()
    }

    /// Whether `prepare_logits` is due before the statistics of its row. Such a sequence never has more than one row in a
    /// step: what a row needs depends on the token before it.
    pub fn prepares_logits(&self) -> bool {
        self.penalties.is_some() || self.logprobs.is_some()
    }

    /// Saves the model's logits for log probabilities, then applies the penalties to them.
    pub fn prepare_logits(&mut self, logits: &mut [f32], tokenizer: &Tokenizer) {
        debug_assert_eq!(self.drafted, 0, "penalties depend on every token before");
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.save_logits(logits);
        }
        if let Some(penalties) = &mut self.penalties {
            penalties.apply(logits, &self.tokens, |token| is_dry_breaker(tokenizer.token_bytes(token)));
        }
    }

    /// How many rows of logits a step over its next `token_count` tokens must return.
    pub fn logits_rows(&self, token_count: usize) -> usize {
        match self.remaining_prompt() {
            0 => token_count,
            left => usize::from(left <= token_count),
        }
    }

    pub fn batch_entry(&self, token_count: usize) -> BatchEntry<'_> {
        BatchEntry {
            tokens: &self.tokens[self.computed..][..token_count],
            first_position: self.computed,
            pages: self.pages.pages(),
            logits_rows: self.logits_rows(token_count),
        }
    }

    /// Takes the tokens chosen from a step's rows: the next one, and as long as it equals the draft, the one after it.
    /// The rejected rest of the draft is dropped; its keys and values are overwritten when those positions are computed
    /// again. Returns the stop reason if the sequence has ended.
    pub fn accept_tokens<'a>(
        &mut self,
        rows: impl Iterator<Item = (&'a LogitStats, &'a [f32])>,
        scratch: &mut SamplerScratch,
        tokenizer: &Tokenizer,
    ) -> Option<StopReason> {
        let verified = self.tokens.len() - self.drafted;
        self.computed = verified;
        let mut reason = None;
        let mut accepted = 0;
        for (position, (logit_stats, weights)) in (verified..).zip(rows) {
            let token = self.sampler.sample(logit_stats, weights, scratch);
            if tokenizer.is_eog(token) {
                self.tokens.truncate(position);
                reason = Some(StopReason::Complete);
                break;
            }
            let was_drafted = self.tokens.get(position) == Some(&token);
            if was_drafted {
                accepted += 1;
                self.computed = position + 1;
            } else {
                self.tokens.truncate(position);
                self.tokens.push(token);
            }
            reason = self.emit(token, tokenizer);
            if reason.is_some() || !was_drafted {
                self.tokens.truncate(position + 1);
                break;
            }
        }
        if self.drafted > 0 {
            self.draft_state.record_outcome(self.drafted, accepted);
            self.drafted = 0;
        }
        reason
    }

    /// Counts a token and emits its text; returns the stop reason if it was the last.
    fn emit(&mut self, token: u32, tokenizer: &Tokenizer) -> Option<StopReason> {
        self.generated += 1;
        if let Some(penalties) = &mut self.penalties {
            penalties.push(token);
        }
        let is_loop = self.repetition.as_mut().is_some_and(|repetition| repetition.push(token));
        let start = self.text.decoded_bytes();
        let emitted = self.text.push(tokenizer.token_bytes(token));
        if !emitted.text.is_empty() {
            self.sink.text(emitted.text);
        }
        let is_stopped = emitted.stopped;
        if let Some(logprobs) = &mut self.logprobs {
            let of_token = logprobs.of(token, tokenizer);
            logprobs.push(of_token, start, &self.text);
            if !is_stopped {
                logprobs.report(&self.text, &self.sink);
            }
        }
        if is_stopped {
            return Some(StopReason::StopSequence);
        }
        if is_loop {
            // The text of the loop stays in the reply: it was streamed, and it is billed like any other.
            return Some(StopReason::Repetition);
        }
        (self.generated >= self.limit).then_some(self.limit_reason)
    }

    /// Emits the text that was withheld, if the reply ends without a stop string, and the rest of the log probabilities.
    pub fn emit_rest(&mut self, reason: StopReason) {
        let is_stopped = reason == StopReason::StopSequence;
        let rest = self.text.pending_text();
        if !is_stopped && !rest.is_empty() {
            self.sink.text(rest);
        }
        if let Some(logprobs) = self.logprobs.take() {
            let reply_bytes = if is_stopped { self.text.emitted_bytes() } else { self.text.decoded_bytes() };
            logprobs.report_rest(reply_bytes, &self.sink);
        }
    }
}

/// The maximum number of tokens in a reply, and the stop reason when it is reached.
pub fn reply_limit(job: &Job, context_tokens: usize) -> (u32, StopReason) {
    let remaining = context_tokens.saturating_sub(job.prompt.token_ids().len());
    let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
    if job.max_output_tokens <= remaining {
        (job.max_output_tokens, StopReason::MaxOutputTokens)
    } else {
        (remaining, StopReason::ContextLength)
    }
}
