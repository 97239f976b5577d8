//! The worker's buffers.

use crate::forward::BatchEntry;
use crate::kernels::LogitStats;
use crate::prefix_cache::PageKey;
use crate::sampler::SamplerScratch;
use crate::scheduler::PendingWork;
use chancery_engine::StopReason;

/// Buffers reused from step to step. A step allocates nothing if no job starts or ends, no prompt is prefilled, no page is
/// started or completed, and no job asks for log probabilities.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) pending: Vec<PendingWork<PageKey>>,
    pub(super) token_counts: Vec<usize>,
    /// Empty between steps.
    pub(super) batch: Vec<BatchEntry<'static>>,
    /// One per row of logits.
    pub(super) temperatures: Vec<f32>,
    pub(super) logit_stats: Vec<LogitStats>,
    pub(super) sampler: SamplerScratch,
    pub(super) ended: Vec<(usize, StopReason)>,
}

/// The same buffer without its contents, and so without their borrows: collecting in place keeps the allocation.
pub(super) fn clear_borrows(mut batch: Vec<BatchEntry<'_>>) -> Vec<BatchEntry<'static>> {
    batch.clear();
    batch.into_iter().map(|_| unreachable!("there are none")).collect()
}
