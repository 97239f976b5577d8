//! One running generation: its tokens, how far they are computed, and what becomes of the tokens that a step chose.

use crate::detokenizer::Detokenizer;
use crate::forward::Segment;
use crate::kernels::Survey;
use crate::kv::{PageLedger, PageTable};
use crate::prefix_cache::PageKey;
use crate::sampler::{Sampler, SamplerRoom};
use crate::scheduler::Pending;
use crate::speculation::Drafting;
use crate::tokenizer::Tokenizer;
use chancery_domain::AccountId;
use chancery_engine::{GenerationSink, Job, StopReason};
use std::time::Instant;

pub struct Sequence {
    pub account: AccountId,
    /// What its account paid for it in the queue, in tokens.
    pub paid: u32,
    pub sink: GenerationSink,
    /// The prompt, behind it what was generated, and during a step what is drafted.
    pub tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose keys and values are in the pages.
    pub computed: usize,
    /// Those of the prompt that did not have to be computed.
    pub from_cache: usize,
    pub generated: u32,
    /// How many tokens may be generated, and what it means to reach that.
    limit: u32,
    limit_reason: StopReason,
    pub pages: PageTable,
    sampler: Sampler,
    pub drafting: Drafting,
    /// How many of the tokens are drafted.
    drafted: usize,
    pub text: Detokenizer,
    pub started: Instant,
}

/// What a job becomes a sequence with.
pub struct Start {
    pub account: AccountId,
    pub paid: u32,
    pub sink: GenerationSink,
    pub pages: PageTable,
    pub started: Instant,
}

impl Sequence {
    pub fn new(job: &Job, context_tokens: usize, start: Start) -> Self {
        let Start { account, paid, sink, pages, started } = start;
        let (limit, limit_reason) = reply_limit(job, context_tokens);
        let prompt = job.prompt.token_ids();
        // All it may ever hold, so that no token makes it grow.
        let mut tokens = Vec::with_capacity(prompt.len() + limit as usize);
        tokens.extend_from_slice(prompt);
        Self {
            account,
            paid,
            sink,
            tokens,
            prompt_tokens: prompt.len(),
            computed: 0,
            from_cache: 0,
            generated: 0,
            limit,
            limit_reason,
            pages,
            sampler: Sampler::new(job.sampling),
            drafting: Drafting::default(),
            drafted: 0,
            text: Detokenizer::new(&job.stop),
            started,
        }
    }

    fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_tokens]
    }

    pub fn prompt_left(&self) -> usize {
        self.prompt_tokens.saturating_sub(self.computed)
    }

    pub fn pending(&self) -> Pending<PageKey> {
        let prompt_left = self.prompt_left();
        let next_page =
            if prompt_left > 0 { self.pages.next_reusable(self.account, self.prompt()) } else { None };
        Pending { prompt_left, next_page }
    }

    /// Takes pages of the prompt from the prefix cache, where it has the next ones.
    pub fn reuse(&mut self, ledger: &mut PageLedger) {
        let prompt = &self.tokens[..self.prompt_tokens];
        let computed = ledger.reuse(&mut self.pages, self.account, prompt, self.computed);
        self.from_cache += computed - self.computed;
        self.computed = computed;
    }

    /// Tokens of work: those of the prompt that were computed, and those that were generated.
    pub fn used_tokens(&self) -> u32 {
        let prompt = self.computed.min(self.prompt_tokens) - self.from_cache;
        u32::try_from(prompt).unwrap_or(u32::MAX).saturating_add(self.generated)
    }

    /// Whether it could use rows for drafts in this step: not where tokens are drawn, because then the next is not
    /// decided by those before, nor where at most one more may come.
    pub fn may_draft(&self) -> bool {
        self.prompt_left() == 0
            && self.temperature() <= 0.0
            && self.most_drafts() > 0
            && self.drafting.is_ready()
    }

    /// Every draft that proves right brings the token after it too, and the limit holds for all of them.
    fn most_drafts(&self) -> usize {
        (self.limit - self.generated).saturating_sub(1) as usize
    }

    /// Puts up to `most` drafted tokens behind those it has, if it may; returns how many.
    pub fn draft(&mut self, most: usize) -> usize {
        if self.may_draft() {
            let most = most.min(self.most_drafts());
            self.drafted = self.drafting.draft(&mut self.tokens, most);
        } else {
            self.drafting.wait_a_step();
        }
        self.drafted
    }

    /// What the row's survey is to be made at.
    pub fn temperature(&self) -> f32 {
        self.sampler.temperature()
    }

    /// How many rows of logits a step over its next `share` tokens is to give.
    pub fn logits_rows(&self, share: usize) -> usize {
        match self.prompt_left() {
            0 => share,
            left => usize::from(left <= share),
        }
    }

    pub fn segment(&self, share: usize) -> Segment<'_> {
        Segment {
            tokens: &self.tokens[self.computed..][..share],
            first_position: self.computed,
            pages: self.pages.pages(),
            logits_rows: self.logits_rows(share),
        }
    }

    /// Takes the tokens that a step's rows choose: the next, and as long as that was drafted, the one after it. What was
    /// drafted wrongly is forgotten; its keys and values are overwritten when their positions are computed again. The
    /// reason when one was the last.
    pub fn take<'a>(
        &mut self,
        rows: impl Iterator<Item = (&'a Survey, &'a [f32])>,
        room: &mut SamplerRoom,
        tokenizer: &Tokenizer,
    ) -> Option<StopReason> {
        let known = self.tokens.len() - self.drafted;
        self.computed = known;
        let mut reason = None;
        let mut right = 0;
        for (at, (survey, weights)) in (known..).zip(rows) {
            let token = self.sampler.choose(survey, weights, room);
            if tokenizer.ends_generation(token) {
                self.tokens.truncate(at);
                reason = Some(StopReason::Complete);
                break;
            }
            let was_drafted = self.tokens.get(at) == Some(&token);
            if was_drafted {
                right += 1;
                self.computed = at + 1;
            } else {
                self.tokens.truncate(at);
                self.tokens.push(token);
            }
            reason = self.say(token, tokenizer);
            if reason.is_some() || !was_drafted {
                self.tokens.truncate(at + 1);
                break;
            }
        }
        if self.drafted > 0 {
            self.drafting.settle(self.drafted, right);
            self.drafted = 0;
        }
        reason
    }

    /// Counts a token and shows its text; the reason when it was the last.
    fn say(&mut self, token: u32, tokenizer: &Tokenizer) -> Option<StopReason> {
        self.generated += 1;
        let shown = self.text.push(tokenizer.token_bytes(token));
        if !shown.text.is_empty() {
            self.sink.text(shown.text);
        }
        if shown.stopped {
            return Some(StopReason::StopSequence);
        }
        (self.generated >= self.limit).then_some(self.limit_reason)
    }
}

/// How many tokens a reply may have, and why it ends there.
pub fn reply_limit(job: &Job, context_tokens: usize) -> (u32, StopReason) {
    let room = context_tokens.saturating_sub(job.prompt.token_ids().len());
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    if job.max_output_tokens <= room {
        (job.max_output_tokens, StopReason::MaxOutputTokens)
    } else {
        (room, StopReason::ContextLength)
    }
}
