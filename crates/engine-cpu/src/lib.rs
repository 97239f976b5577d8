//! The embedded engine: GGUF models of the Llama, Mistral, SmolLM2 and Qwen families on the CPU, in pure Rust. The file
//! brings everything: weights, vocabulary, merges and chat template. One thread owns the model and steps several sequences together; callers reach
//! it through a bounded queue.
//!
//! It deliberately does not do other architectures, nor mixtures of experts: whatever in a file would change the
//! arithmetic and is not honoured is refused by name when it loads, and such models run on an upstream engine.

mod chat_template;
mod detokenizer;
mod engine;
mod error;
mod evaluation;
mod fair_queue;
mod forward;
mod gguf;
mod half_precision;
mod kernels;
mod kv;
mod limits;
mod memory;
mod model;
mod plan;
mod prefix_cache;
mod quantised;
mod sampler;
mod scheduler;
mod speculation;
mod step_turns;
mod tokenizer;
mod worker;

pub use engine::CpuEngine;
pub use error::{Fault, LoadError};
pub use evaluation::Evaluation;
pub use forward::StepTimes;
pub use gguf::{Array, Gguf, Metadata, TensorInfo, TensorType, Value};
pub use kv::KvPages;
pub use limits::MAX_SLOTS;
pub use memory::MemoryNeed;
pub use plan::{LoadOptions, Plan, Shortage};
pub use tokenizer::Tokenizer;
