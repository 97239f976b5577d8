//! Whether the model can hold all that it is to read, and the longest reply beside it. The API counts, for free. What does not
//! fit is named to the person, who chooses; nothing is ever cut silently.

use super::api::{Drafter, Prompt};
use super::counts::tokens;
use super::failure::Failure;
use super::fault::{Fault, Trouble};
use super::limits::OUTPUT_TOKENS;
use super::offer::Offer;
use super::prompt::{Brief, prompt};
use crate::when::short_day;
use chancery_domain::{Entry, grouped};

/// The whole prompt, or which entries are too much.
pub(crate) async fn fitted(drafter: &Drafter, brief: &Brief<'_>) -> Result<Prompt, Failure> {
    let offer = drafter.offer().await?;
    if brief.max_output_tokens >= offer.context_tokens {
        let least = OUTPUT_TOKENS.start();
        let words = format!(
            "The model holds {} at once, reading and writing together; ask for fewer, from {least}.",
            tokens(offer.context_tokens)
        );
        return Err(Failure::of_field("max_output_tokens", words));
    }
    let mut search = Search::among(brief.entries.len());
    while let Some(count) = search.question() {
        let part = prompt(&Brief { entries: &brief.entries[..count], ..*brief });
        search.answer(count, fits(drafter, &offer, &part).await?);
    }
    match search.fitting {
        Some(count) if count == brief.entries.len() => Ok(prompt(brief)),
        Some(count) => Err(too_many(&offer, brief, &brief.entries[count..])),
        None => Err(Failure::of_field(
            "purpose",
            format!(
                "The model holds {} at once. Say what the letter is for in fewer words, or shorten the longest reply.",
                tokens(offer.context_tokens)
            ),
        )),
    }
}

async fn fits(drafter: &Drafter, offer: &Offer, prompt: &Prompt) -> Result<bool, Fault> {
    match drafter.count(offer, prompt).await {
        Ok(count) => Ok(count.max_output_tokens >= prompt.max_output_tokens),
        Err(Fault { trouble: Trouble::TooLong, .. }) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Looks for how many entries, from the first on, fit together. It asks few times, and most often once: all of them fit.
#[derive(Debug)]
struct Search {
    all: usize,
    /// So many fit for certain; None where not even none are known to.
    fitting: Option<usize>,
    /// So many do not fit for certain; one more than all where nothing is known.
    too_many: usize,
}

impl Search {
    fn among(all: usize) -> Self {
        Self { all, fitting: None, too_many: all + 1 }
    }

    /// How many to try next; None when the answer is known.
    fn question(&self) -> Option<usize> {
        match self.fitting {
            _ if self.too_many > self.all => (self.fitting != Some(self.all)).then_some(self.all),
            None => (self.too_many > 0).then_some(0),
            Some(fitting) => (self.too_many - fitting > 1).then_some(fitting + (self.too_many - fitting) / 2),
        }
    }

    fn answer(&mut self, count: usize, fits: bool) {
        if fits { self.fitting = Some(count) } else { self.too_many = count }
    }
}

fn too_many(offer: &Offer, brief: &Brief<'_>, left: &[Entry]) -> Failure {
    let named = |entry: &Entry| format!("“{}” ({})", entry.title, short_day(entry.at, brief.today));
    let names = left.iter().map(named).collect::<Vec<_>>().join(", ");
    let (it, them) = if left.len() == 1 { ("this does", "it") } else { ("these do", "them") };
    let words = format!(
        "The model holds {} tokens at once, and beside a reply of {} {it} not fit: {names}. Your text is untouched and \
         nothing was billed; untick {them}, or shorten the longest reply.",
        grouped(offer.context_tokens.into()),
        grouped(brief.max_output_tokens.into()),
    );
    Failure::of_field("entries", words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_many_fit_as_their_sizes_allow(sizes in proptest::collection::vec(1_u32..50, 0..40), room in 0_u32..800, base in 0_u32..20) {
            let taken = |count: usize| base + sizes[..count].iter().sum::<u32>();
            let (mut search, mut questions) = (Search::among(sizes.len()), 0);
            while let Some(count) = search.question() {
                search.answer(count, taken(count) <= room);
                questions += 1;
            }
            prop_assert!(questions <= 8, "{questions} questions");
            let found = search.fitting;
            let expected = (0..=sizes.len()).rev().find(|count| taken(*count) <= room);
            prop_assert_eq!(found, expected);
        }
    }
}
