//! Plans for models of which there is only a header.

use super::*;
use crate::gguf::TensorType;
use crate::gguf::writer::GgufWriter;
use crate::memory::Bound;
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;
/// 1,000 × 1,000 weights in four bytes each.
const EMBEDDING_BYTES: u64 = 4_000_000;

/// Files of models of 32 layers with 8 key-value heads of 128 values, the size of a usual 8-billion model: a page of
/// their caches is 8.4 MB, and a context of 32,768 tokens 4.3 GB. The matrices are much smaller.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn model(&self, name: &str, made_for_tokens: u32) -> PathBuf {
        let tokens = vec!["a"; 1_008];
        let bytes = GgufWriter::new()
            .string("general.architecture", "llama")
            .string("general.name", "A model")
            .u32("llama.block_count", 32)
            .u32("llama.context_length", made_for_tokens)
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
    Plan::within(models, Some(Available { bytes: gigabytes * GB, bound: Bound::ControlGroup }))
}

fn one(path: &Path, options: LoadOptions, gigabytes: u64) -> Plan {
    plan(&[(path.to_owned(), options)], gigabytes).unwrap().remove(0)
}

#[test]
fn a_context_is_what_the_model_was_made_for_up_to_a_bound_and_to_what_memory_holds() {
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
fn there_are_as_many_slots_as_usual_jobs_find_room() {
    let folder = Folder::new();
    let path = folder.model("m", 4_096);
    // 1 GiB holds 8,192 tokens of 131,072 bytes each.
    assert_eq!(one(&path, named("m"), 64).slots(), 8);
    let squeezed = one(&path, named("m"), 2).slots();
    assert!((1..8).contains(&squeezed), "{squeezed}");
    assert_eq!(one(&path, LoadOptions { slots: Some(40), ..named("m") }, 64).slots(), 40);
}

#[test]
fn the_need_counts_weights_cache_work_and_tokenizer() {
    let folder = Folder::new();
    let path = folder.model("m", 4_096);
    let need =
        one(&path, LoadOptions { context_tokens: Some(4_096), slots: Some(1), ..named("m") }, 64).need();
    // The embedding as it is, the logits' matrix made from it in one byte each with some padding, and the norm.
    let matrix = need.weights_bytes - EMBEDDING_BYTES - 4_000;
    assert!((1_000_000..1_200_000).contains(&matrix), "{matrix}");
    assert_eq!(need.kv_bytes, (pages_for(4_096) + SHORT_LANE_PAGES) as u64 * PAGE_TOKENS as u64 * 131_072);
    assert_eq!(need.tokenizer_bytes, 1_008 * TOKENIZER_BYTES_PER_TOKEN as u64);
    assert!(need.work_bytes > 256 * 4 * (4_096 + 2 * 14_336), "{need:?}");
}

#[test]
fn what_cannot_fit_is_refused_with_the_numbers_and_the_fix() {
    let folder = Folder::new();
    let path = folder.model("m", 32_768);
    let wanted = [(path, LoadOptions { context_tokens: Some(32_768), ..named("big") })];
    let text = plan(&wanted, 4).unwrap_err().to_string();
    for part in [
        "of memory would be needed and 3.5 GB can be taken",
        "4.0 GB left of the memory limit of this control group",
        "big needs",
        "contexts of up to 32768 tokens",
        "lower `context_tokens` or `slots`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(plan(&wanted, 16).is_ok());
}

#[test]
fn models_that_fit_alone_but_not_together_are_refused_together() {
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
fn where_memory_is_not_known_nothing_is_refused() {
    let folder = Folder::new();
    let plans = Plan::within(&[(folder.model("m", 131_072), named("m"))], None).unwrap();
    assert_eq!(plans[0].context_tokens(), 32_768);
}

#[test]
fn an_option_out_of_range_is_refused_by_name() {
    let folder = Folder::new();
    let path = folder.model("m", 4_096);
    let refusal = |options| plan(&[(path.clone(), options)], 64).unwrap_err().to_string();
    assert!(refusal(LoadOptions { context_tokens: Some(4_097), ..named("m") }).contains("made for 4096"));
    assert!(
        refusal(LoadOptions { context_tokens: Some(1), ..named("m") })
            .contains("`context_tokens` cannot be 1")
    );
    assert!(refusal(LoadOptions { slots: Some(0), ..named("m") }).contains("`slots` cannot be 0"));
    assert!(refusal(LoadOptions { threads: Some(1_000), ..named("m") }).contains("`threads` cannot be 1000"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is configured and however much there is: what is planned fits, every context has its pages, and more
    /// memory never gives less.
    #[test]
    fn a_plan_always_fits_and_more_memory_never_gives_less(
        models in proptest::collection::vec(
            (1_000_u32..200_000, proptest::option::of(64_u32..1_000), proptest::option::of(1_usize..64)), 1..4),
        megabytes in 500_u64..40_000,
        more_megabytes in 0_u64..10_000,
    ) {
        let folder = Folder::new();
        let models: Vec<(PathBuf, LoadOptions)> = models
            .into_iter()
            .enumerate()
            .map(|(index, (made_for, context_tokens, slots))| {
                let name = format!("m{index}");
                (folder.model(&name, made_for), LoadOptions { context_tokens, slots, ..named(&name) })
            })
            .collect();
        let within = |megabytes: u64| {
            let available = Available { bytes: megabytes * 1_000_000, bound: Bound::Machine };
            Plan::within(&models, Some(available))
        };
        if let Ok(plans) = within(megabytes) {
            let total: u64 = plans.iter().map(|plan| plan.need().total_bytes()).sum();
            prop_assert!(total <= megabytes * 1_000_000 / 8 * 7);
            let richer = within(megabytes + more_megabytes);
            prop_assert!(richer.is_ok());
            for ((plan, richer), (_, options)) in plans.iter().zip(richer.unwrap()).zip(&models) {
                let Bounds { context_tokens, slots, pages, .. } = plan.bounds;
                prop_assert!(slots >= 1 && pages >= pages_for(context_tokens));
                prop_assert!(options.context_tokens.is_none_or(|tokens| tokens as usize == context_tokens));
                prop_assert!(options.slots.is_none_or(|asked| asked == slots));
                prop_assert!(richer.bounds.context_tokens >= context_tokens && richer.bounds.slots >= slots);
            }
        }
    }
}
