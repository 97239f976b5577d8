//! Checks that the prompt and the longest reply fit the model's context. The API counts tokens for free. Entries that do not fit are
//! named to the user, who chooses; nothing is ever truncated silently.

use super::api::{Drafter, Prompt};
use super::error::{DraftError, DraftErrorKind};
use super::failure::DraftFailure;
use super::limits::OUTPUT_TOKENS;
use super::model_offer::ModelOffer;
use super::prompt::{Brief, prompt};
use super::token_count::tokens;
use crate::time_format::short_local_day;
use chancery_domain::{Entry, group_thousands};

/// The whole prompt, or an error that names the excess entries.
pub(super) async fn fit_prompt(
    drafter: &Drafter,
    model_offer: &ModelOffer,
    brief: &Brief<'_>,
) -> Result<Prompt, DraftFailure> {
    if brief.max_output_tokens >= model_offer.context_tokens {
        let min = OUTPUT_TOKENS.start();
        let message = format!(
            "The model’s limit is {}, input and output together. Enter a smaller number, {min} or more.",
            tokens(model_offer.context_tokens)
        );
        return Err(DraftFailure::for_field("max_output_tokens", message));
    }
    let mut search = FitSearch::new(brief.entries.len());
    while let Some(count) = search.next_probe() {
        let part = prompt(&Brief { entries: &brief.entries[..count], ..*brief });
        search.record_probe(count, fits(drafter, model_offer, &part).await?);
    }
    match search.fitting {
        Some(count) if count == brief.entries.len() => Ok(prompt(brief)),
        Some(count) => Err(too_many(model_offer, brief, &brief.entries[count..])),
        None => Err(DraftFailure::for_field(
            "purpose",
            format!(
                "The model’s limit is {}. Shorten this text or reduce the maximum length.",
                tokens(model_offer.context_tokens)
            ),
        )),
    }
}

pub(super) async fn fits(
    drafter: &Drafter,
    model_offer: &ModelOffer,
    prompt: &Prompt,
) -> Result<bool, DraftError> {
    match drafter.count(model_offer, prompt).await {
        Ok(count) => Ok(count.max_output_tokens >= prompt.max_output_tokens),
        Err(DraftError { kind: DraftErrorKind::TooLong, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Binary search for how many entries, from the first on, fit together. Usually one request suffices, because all of them fit.
#[derive(Debug)]
struct FitSearch {
    all: usize,
    /// The largest count known to fit. `None` if not even zero entries are known to fit.
    fitting: Option<usize>,
    /// The smallest count known not to fit. One more than `all` if unknown.
    too_many: usize,
}

impl FitSearch {
    fn new(all: usize) -> Self {
        Self { all, fitting: None, too_many: all + 1 }
    }

    /// The next count to try, or `None` when the result is known.
    fn next_probe(&self) -> Option<usize> {
        match self.fitting {
            _ if self.too_many > self.all => (self.fitting != Some(self.all)).then_some(self.all),
            None => (self.too_many > 0).then_some(0),
            Some(fitting) => (self.too_many - fitting > 1).then_some(fitting + (self.too_many - fitting) / 2),
        }
    }

    fn record_probe(&mut self, count: usize, fits: bool) {
        if fits { self.fitting = Some(count) } else { self.too_many = count }
    }
}

fn too_many(model_offer: &ModelOffer, brief: &Brief<'_>, left: &[Entry]) -> DraftFailure {
    let named = |entry: &Entry| format!("“{}” ({})", entry.title, short_local_day(entry.at, brief.local));
    let names = left.iter().map(named).collect::<Vec<_>>().join(", ");
    let message = format!(
        "Too much context: the model’s limit is {} tokens, {} of them for the reply. Deselect {names}, or reduce the maximum length. Nothing was billed.",
        group_thousands(model_offer.context_tokens.into()),
        group_thousands(brief.max_output_tokens.into()),
    );
    DraftFailure::for_field("entries", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fit_search_finds_the_largest_prefix(sizes in proptest::collection::vec(1_u32..50, 0..40), room in 0_u32..800, base in 0_u32..20) {
            let taken = |count: usize| base + sizes[..count].iter().sum::<u32>();
            let (mut search, mut questions) = (FitSearch::new(sizes.len()), 0);
            while let Some(count) = search.next_probe() {
                search.record_probe(count, taken(count) <= room);
                questions += 1;
            }
            prop_assert!(questions <= 8, "{questions} questions");
            let found = search.fitting;
            let expected = (0..=sizes.len()).rev().find(|count| taken(*count) <= room);
            prop_assert_eq!(found, expected);
        }
    }
}
