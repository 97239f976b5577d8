//! The embedded engine: GGUF models of the Llama, Mistral, SmolLM2 and Qwen families on the CPU, in pure Rust. The file
//! contains everything: weights, vocabulary, merges and chat template. One thread owns the model and runs several
//! sequences in one batch; callers reach it through a bounded queue.
//!
//! It deliberately does not support other architectures or mixtures of experts. If a file contains anything that would
//! change the arithmetic and is not implemented, loading fails and names it; such models run on an upstream engine.

mod accuracy;
mod allocation_budget;
mod chat_template;
mod detokenizer;
mod engine;
mod error;
mod evaluation;
mod fair_queue;
mod forward;
#[cfg(test)]
mod fuzz;
mod gguf;
mod group;
mod half_precision;
mod kernels;
mod limits;
mod memory;
mod model;
mod paging;
mod penalties;
mod plan;
mod prefill_budget;
mod prefix_cache;
mod quantized;
mod sampler;
mod scheduler;
mod speculation;
mod split_allocator;
mod step_lock;
mod template_thread;
mod tokenizer;
mod worker;

pub use accuracy::{LogprobComparison, log_softmax, text_logprobs};
pub use allocation_budget::BudgetedAllocator;
pub use engine::CpuEngine;
pub use error::{LoadError, ModelFileError};
pub use evaluation::LogprobEvaluator;
pub use forward::StepTimes;
pub use gguf::{Array, Gguf, Metadata, TensorInfo, TensorType, Value};
pub use group::EngineGroup;
pub use limits::MAX_SLOTS;
pub use memory::MemoryEstimate;
pub use paging::KvPageUsage;
pub use plan::{InsufficientMemory, LoadOptions, Plan, usable_memory_bytes};
pub use split_allocator::SplitAllocator;
pub use tokenizer::Tokenizer;
