//! Tests the engine on real weights, at the path in `CHANCERY_TEST_MODEL`, and on small random models of every
//! architecture.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod accuracy;
mod architectures;
mod fuzz;
mod generation;
mod logprobs;
mod malicious_files;
mod penalties;
mod speculation;
mod template_bounds;
mod tokenizer;

use chancery_domain::SystemClock;
use chancery_engine_cpu::{BudgetedAllocator, CpuEngine, LoadOptions};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::alloc::System;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Bounds chat templates, as in the server.
#[global_allocator]
static ALLOCATOR: BudgetedAllocator<System> = BudgetedAllocator(System);

fn model_path() -> PathBuf {
    match std::env::var_os("CHANCERY_TEST_MODEL") {
        Some(path) => path.into(),
        None => panic!(
            "CHANCERY_TEST_MODEL is not set: run `make test`, which fetches the model and sets CHANCERY_TEST_MODEL"
        ),
    }
}

fn load(options: &LoadOptions) -> CpuEngine {
    CpuEngine::load(&model_path(), options, Arc::new(SystemClock)).unwrap()
}

/// The engine with its defaults, shared by the tests of one process.
fn engine() -> &'static CpuEngine {
    static ENGINE: OnceLock<CpuEngine> = OnceLock::new();
    ENGINE.get_or_init(|| load(&LoadOptions::default()))
}

fn rows<T: DeserializeOwned>(jsonl: &str) -> Vec<T> {
    jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A row of `fixtures/generations.jsonl`: the output of llama.cpp and of an f32 implementation for the same file.
#[derive(Deserialize)]
struct Reference {
    instructions: String,
    input: String,
    prompt_ids: Vec<u32>,
    input_tokens: u32,
    llama_cpp_greedy: Vec<ReferenceStep>,
    f32_first_step_top: Vec<(u32, f64)>,
}

#[derive(Deserialize)]
struct ReferenceStep {
    id: u32,
    top: Vec<(u32, f64)>,
}

fn references() -> Vec<Reference> {
    rows(include_str!("../fixtures/generations.jsonl"))
}
