//! How each size of model is asked for a letter. All numbers are in one table: `TUNING`.

use serde_json::{Value, json};

/// Sizes of models, by their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelSize {
    Tiny,
    Small,
    Medium,
    /// Also a model whose parameters the API does not know, such as one on another server.
    Large,
}

/// Sampling fields of a request. The API's default applies to a field that is `None`: it is not sent.
///
/// Only very small models get penalties: they would loop. Penalties punish what was there before, so they change figures. A letter
/// copies dates and amounts from the notes, and `$420` became `$560`. `stop_on_repetition` ends a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DraftSampling {
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) dry_multiplier: Option<f64>,
    pub(crate) dry_allowed_length: Option<u32>,
}

/// How the model generates, besides the prompt and the maximum length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GenerationOptions {
    pub(crate) sampling: DraftSampling,
    /// Strings that end the reply.
    pub(crate) stop: &'static [&'static str],
    /// The same request draws the same text.
    pub(crate) seed: u32,
}

/// Fields that an API may reject. A draft works without them, if less well.
pub(super) const OPTIONAL_FIELDS: [&str; 8] = [
    "temperature",
    "top_p",
    "frequency_penalty",
    "dry_multiplier",
    "dry_allowed_length",
    "stop",
    "seed",
    "stop_on_repetition",
];

impl GenerationOptions {
    /// The optional fields of a request. A reply that loops always ends.
    pub(super) fn fields(&self) -> impl Iterator<Item = (String, Value)> + use<> {
        let Self { sampling, stop, seed } = self;
        let values = [
            json!(sampling.temperature),
            json!(sampling.top_p),
            json!(sampling.frequency_penalty),
            json!(sampling.dry_multiplier),
            json!(sampling.dry_allowed_length),
            if stop.is_empty() { Value::Null } else { json!(stop) },
            json!(seed),
            json!(true),
        ];
        let fields = OPTIONAL_FIELDS.into_iter().zip(values);
        fields.filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value))
    }
}

#[derive(Debug)]
pub(crate) struct Tuning {
    /// Models below this many parameters, and not in the row before.
    below_parameters: u64,
    /// The size in words: `small model`.
    pub(crate) name: &'static str,
    /// What the writer can expect, for the panel.
    pub(crate) expectation: &'static str,
    /// Whether the portal writes salutation and closing from the record, and the model only what is between them.
    pub(crate) has_skeleton: bool,
    /// The maximum length that the panel suggests.
    pub(crate) default_output_tokens: u32,
    /// Of the first draft of a letter.
    sampling: DraftSampling,
    /// Of the drafts after it.
    redraft_sampling: DraftSampling,
    pub(crate) stop: &'static [&'static str],
}

impl Tuning {
    /// `attempt` is 0 for the first draft of a letter.
    pub(super) fn sampling(&self, attempt: u32) -> DraftSampling {
        if attempt == 0 { self.sampling } else { self.redraft_sampling }
    }
}

/// Where a closing begins. The portal adds its own. The API takes at most four.
const CLOSING_STOPS: &[&str] = &["\nSincerely", "\nYours ", "\nKind regards", "\nBest regards"];

/// Without penalties.
const fn plain(temperature: f64, top_p: Option<f64>) -> DraftSampling {
    DraftSampling {
        temperature: Some(temperature),
        top_p,
        frequency_penalty: None,
        dry_multiplier: None,
        dry_allowed_length: None,
    }
}

/// The likeliest text: figures are exact.
const GREEDY: DraftSampling = plain(0.0, None);
/// For another draft of the same letter, which must differ.
const VARIED: DraftSampling = plain(0.4, Some(0.9));
const WHOLE_LETTER_SAMPLING: DraftSampling = plain(0.3, Some(0.95));
/// For models that loop whatever they are asked.
const PENALIZED: DraftSampling = DraftSampling {
    temperature: Some(0.3),
    top_p: Some(0.9),
    frequency_penalty: Some(0.1),
    dry_multiplier: Some(0.8),
    dry_allowed_length: Some(3),
};

/// By `ModelSize`, smallest first.
static TUNING: [Tuning; 4] = [
    Tuning {
        below_parameters: 300_000_000,
        name: "very small model",
        expectation: "Expect rough text with mistakes. Check every sentence.",
        has_skeleton: true,
        default_output_tokens: 300,
        sampling: PENALIZED,
        redraft_sampling: PENALIZED,
        stop: CLOSING_STOPS,
    },
    Tuning {
        below_parameters: 1_000_000_000,
        name: "small model",
        expectation: "Expect short, simple text. Check every sentence.",
        has_skeleton: true,
        default_output_tokens: 350,
        sampling: GREEDY,
        redraft_sampling: VARIED,
        stop: CLOSING_STOPS,
    },
    Tuning {
        below_parameters: 4_000_000_000,
        name: "medium-sized model",
        expectation: "Expect a usable letter. Check names, dates and amounts.",
        has_skeleton: true,
        default_output_tokens: 400,
        sampling: GREEDY,
        redraft_sampling: VARIED,
        stop: CLOSING_STOPS,
    },
    Tuning {
        below_parameters: u64::MAX,
        name: "large model",
        expectation: "Check names, dates and amounts.",
        has_skeleton: false,
        default_output_tokens: 600,
        sampling: WHOLE_LETTER_SAMPLING,
        redraft_sampling: WHOLE_LETTER_SAMPLING,
        stop: &[],
    },
];

/// For an edit of a passage.
pub(crate) const REWRITE_SAMPLING: DraftSampling = plain(0.2, Some(0.9));

impl ModelSize {
    pub(super) const ALL: [Self; 4] = [Self::Tiny, Self::Small, Self::Medium, Self::Large];

    /// `None` counts as large.
    pub(crate) fn of(parameters: Option<u64>) -> Self {
        let Some(parameters) = parameters else { return Self::Large };
        let fits = |size: &Self| parameters < size.tuning().below_parameters;
        Self::ALL.into_iter().find(fits).unwrap_or(Self::Large)
    }

    pub(crate) fn tuning(self) -> &'static Tuning {
        match self {
            Self::Tiny => &TUNING[0],
            Self::Small => &TUNING[1],
            Self::Medium => &TUNING[2],
            Self::Large => &TUNING[3],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_follows_the_parameters_and_unknown_is_large() {
        for (parameters, size) in [
            (Some(134_515_008), ModelSize::Tiny),
            (Some(300_000_000), ModelSize::Small),
            (Some(494_032_768), ModelSize::Small),
            (Some(1_543_714_304), ModelSize::Medium),
            (Some(4_000_000_000), ModelSize::Large),
            (Some(u64::MAX), ModelSize::Large),
            (None, ModelSize::Large),
        ] {
            assert_eq!(ModelSize::of(parameters), size, "{parameters:?}");
        }
    }

    #[test]
    fn fields_without_a_value_are_not_sent_and_loops_always_end() {
        let options = GenerationOptions { seed: 7, ..GenerationOptions::default() };
        let fields: Vec<(String, Value)> = options.fields().collect();
        assert_eq!(fields, [("seed".to_owned(), json!(7)), ("stop_on_repetition".to_owned(), json!(true))]);
        let options = GenerationOptions { sampling: PENALIZED, stop: CLOSING_STOPS, seed: 7 };
        let names: Vec<String> = options.fields().map(|(name, _)| name).collect();
        assert_eq!(names, OPTIONAL_FIELDS);
    }

    #[test]
    fn every_size_has_values_that_the_api_accepts() {
        for size in ModelSize::ALL {
            let tuning = size.tuning();
            assert!(crate::drafting::limits::OUTPUT_TOKENS.contains(&tuning.default_output_tokens));
            assert!(tuning.stop.len() <= 4);
            for sampling in [0, 1].map(|attempt| tuning.sampling(attempt)) {
                assert!(sampling.temperature.is_some_and(|value| (0.0..=2.0).contains(&value)));
                assert!(sampling.top_p.is_none_or(|value| value > 0.0 && value <= 1.0));
                assert!(sampling.frequency_penalty.is_none_or(|value| (-2.0..=2.0).contains(&value)));
                assert!(sampling.dry_multiplier.is_none_or(|value| (0.0..=5.0).contains(&value)));
                assert!(sampling.dry_allowed_length.is_none_or(|value| (1..=64).contains(&value)));
            }
        }
    }

    #[test]
    fn small_models_copy_figures_first_and_vary_when_drafting_again() {
        for size in [ModelSize::Small, ModelSize::Medium] {
            assert_eq!(size.tuning().sampling(0), GREEDY, "{size:?}");
            for attempt in [1, 2, u32::MAX] {
                assert_eq!(size.tuning().sampling(attempt), VARIED, "{size:?}");
            }
        }
    }
}
