//! Plans for models whose files have a realistic header and tiny weights.

use super::*;
use crate::gguf::TensorType;
use crate::gguf::writer::GgufWriter;
use crate::memory::MemoryBound;
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;
/// 1,000 × 1,000 weights of four bytes each.
const EMBEDDING_BYTES: u64 = 4_000_000;
/// 32 layers of 8 heads: keys and values of 128 numbers with two bytes each, and a scale of four.
const KV_TOKEN_BYTES: u64 = 32 * 8 * 2 * (128 * 2 + 4);

/// Model files of 32 layers with 8 KV heads of 128 values, as in a typical 8B model: a page of the KV cache is 2.1 MB,
/// and a context of 32,768 tokens 4.3 GB. The matrices are much smaller.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn model(&self, name: &str, trained_context: u32) -> PathBuf {
        let tokens = vec!["a"; 1_008];
        let bytes = GgufWriter::new()
            .string("general.architecture", "llama")
            .string("general.name", "A model")
            .u32("llama.block_count", 32)
            .u32("llama.context_length", trained_context)
            .u32("llama.embedding_length", 4_096)
            .u32("llama.feed_forward_length", 14_336)
            .u32("llama.attention.head_count", 32)
            .u32("llama.attention.head_count_kv", 8)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .strings("tokenizer.ggml.tokens", &tokens)
            .tensor("token_embd.weight", &[1_000, 1_000], TensorType::F32, &vec![0; EMBEDDING_BYTES as usize])
            .tensor("output_norm.weight", &[1_000], TensorType::F32, &[0; 4_000])
            .finish();
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn named(name: &str) -> LoadOptions {
    LoadOptions { name: name.to_owned(), ..LoadOptions::default() }
}

fn plan(models: &[(PathBuf, LoadOptions)], gigabytes: u64) -> Result<Vec<Plan>, LoadError> {
    Plan::fit(models, Some(AvailableMemory { bytes: gigabytes * GB, bound: MemoryBound::Cgroup }))
}

fn one(path: &Path, options: LoadOptions, gigabytes: u64) -> Plan {
    plan(&[(path.to_owned(), options)], gigabytes).unwrap().remove(0)
}

#[test]
fn context_is_the_models_own_within_the_default_limit_and_memory() {
    let folder = Folder::new();
    let (short, long) = (folder.model("short", 4_096), folder.model("long", 131_072));
    assert_eq!(one(&short, named("m"), 64).context_tokens(), 4_096);
    assert_eq!(one(&long, named("m"), 64).context_tokens(), 32_768);
    let squeezed = one(&long, named("m"), 3).context_tokens();
    assert!((2_048..32_768).contains(&squeezed), "{squeezed}");
    assert_eq!(
        one(&long, LoadOptions { context_tokens: Some(100_000), ..named("m") }, 64).context_tokens(),
        100_000
    );
}

#[test]
fn slots_fit_typical_jobs_into_memory() {
    let folder = Folder::new();
    let path = folder.model("m", 4_096);
    // 1 GiB holds 8,192 tokens of 131,072 bytes each.
    assert_eq!(one(&path, named("m"), 64).slots(), 8);
    let squeezed = one(&path, named("m"), 2).slots();
    assert!((1..8).contains(&squeezed), "{squeezed}");
    assert_eq!(one(&path, LoadOptions { slots: Some(40), ..named("m") }, 64).slots(), 40);
}

#[test]
fn memory_need_includes_weights_kv_cache_buffers_and_tokenizer() {
    let folder = Folder::new();
    let path = folder.model("m", 4_096);
    let memory_estimate =
        one(&path, LoadOptions { context_tokens: Some(4_096), slots: Some(1), ..named("m") }, 64)
            .memory_estimate();
    // The embedding as it is, the output matrix created from it at one byte per weight with some padding, and the norm.
    let matrix = memory_estimate.weights_bytes - EMBEDDING_BYTES - 4_000;
    assert!((1_000_000..1_200_000).contains(&matrix), "{matrix}");
    assert_eq!(
        memory_estimate.kv_bytes,
        (pages_for(4_096) + SHORT_POOL_PAGES) as u64 * PAGE_TOKENS as u64 * KV_TOKEN_BYTES
    );
    assert_eq!(memory_estimate.tokenizer_bytes, 1_008 * TOKENIZER_BYTES_PER_TOKEN as u64);
    assert!(memory_estimate.activation_bytes > 256 * 4 * (4_096 + 2 * 14_336), "{memory_estimate:?}");
}

#[test]
fn oversized_model_is_rejected_with_sizes_and_a_fix() {
    let folder = Folder::new();
    let path = folder.model("m", 32_768);
    let models = [(path, LoadOptions { context_tokens: Some(32_768), ..named("big") })];
    let text = plan(&models, 4).unwrap_err().to_string();
    for part in [
        "needed, 3.5 GB usable",
        "4.0 GB left in this container's memory limit (cgroup)",
        "big needs",
        "context up to 32768 tokens",
        "lower `context_tokens` or `slots`",
        "`chancery model list` shows what fits",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(plan(&models, 16).is_ok());
}

#[test]
fn models_that_do_not_fit_together_are_rejected() {
    let folder = Folder::new();
    let path = folder.model("m", 8_192);
    let model = |name| (path.clone(), LoadOptions { context_tokens: Some(8_192), ..named(name) });
    let both = [model("one"), model("two")];
    assert!(plan(&both[..1], 3).is_ok() && plan(&both[1..], 3).is_ok());
    let text = plan(&both, 3).unwrap_err().to_string();
    assert!(text.contains("one needs") && text.contains("two needs"), "{text}");
    assert!(plan(&both, 6).is_ok());
}

#[test]
fn unknown_memory_rejects_nothing() {
    let folder = Folder::new();
    let plans = Plan::fit(&[(folder.model("m", 131_072), named("m"))], None).unwrap();
    assert_eq!(plans[0].context_tokens(), 32_768);
}

#[test]
fn machines_with_many_cores_leave_one_to_the_server() {
    assert_eq!([1, 2, 4, 7].map(default_threads), [1, 2, 4, 7]);
    assert_eq!([8, 16, 64, 65, 256].map(default_threads), [7, 15, 63, 64, 64]);
}

#[test]
fn out_of_range_option_is_rejected_by_name() {
    let folder = Folder::new();
    let path = folder.model("m", 4_096);
    let rejection = |options| plan(&[(path.clone(), options)], 64).unwrap_err().to_string();
    assert!(
        rejection(LoadOptions { context_tokens: Some(4_097), ..named("m") }).contains("trained for 4096")
    );
    assert!(
        rejection(LoadOptions { context_tokens: Some(1), ..named("m") })
            .contains("invalid `context_tokens` 1 for")
    );
    assert!(rejection(LoadOptions { slots: Some(0), ..named("m") }).contains("invalid `slots` 0 for"));
    assert!(
        rejection(LoadOptions { threads: Some(1_000), ..named("m") }).contains("invalid `threads` 1000 for")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the options and the memory: the plan fits, every context has its pages, and more memory never yields
    /// less.
    #[test]
    fn plan_always_fits_and_more_memory_never_yields_less(
        models in proptest::collection::vec(
            (1_000_u32..200_000, proptest::option::of(64_u32..1_000), proptest::option::of(1_usize..64)), 1..4),
        megabytes in 500_u64..40_000,
        more_megabytes in 0_u64..10_000,
    ) {
        let folder = Folder::new();
        let models: Vec<(PathBuf, LoadOptions)> = models
            .into_iter()
            .enumerate()
            .map(|(index, (trained_context, context_tokens, slots))| {
                let name = format!("m{index}");
                (folder.model(&name, trained_context), LoadOptions { context_tokens, slots, ..named(&name) })
            })
            .collect();
        let fit = |megabytes: u64| {
            let available = AvailableMemory { bytes: megabytes * 1_000_000, bound: MemoryBound::Machine };
            Plan::fit(&models, Some(available))
        };
        if let Ok(plans) = fit(megabytes) {
            let total: u64 = plans.iter().map(|plan| plan.memory_estimate().total_bytes()).sum();
            prop_assert!(total <= megabytes * 1_000_000 / 8 * 7);
            let richer = fit(megabytes + more_megabytes);
            prop_assert!(richer.is_ok());
            for ((plan, richer), (_, options)) in plans.iter().zip(richer.unwrap()).zip(&models) {
                let WorkerLimits { context_tokens, slots, pages, .. } = plan.worker_limits;
                prop_assert!(slots >= 1 && pages >= pages_for(context_tokens));
                prop_assert!(options.context_tokens.is_none_or(|tokens| tokens as usize == context_tokens));
                prop_assert!(options.slots.is_none_or(|requested| requested == slots));
                prop_assert!(richer.worker_limits.context_tokens >= context_tokens && richer.worker_limits.slots >= slots);
            }
        }
    }
}
