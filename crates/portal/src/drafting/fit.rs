//! Whether the model can hold all that it is to read, and the longest reply beside it. The API counts, for free. What does not
//! fit is named to the person, who chooses; nothing is ever cut silently.

use super::api::{Drafter, Prompt};
use super::failure::Failure;
use super::fault::{Fault, Trouble};
use super::limits::OUTPUT_TOKENS;
use super::money::{grouped, tokens};
use super::offer::Offer;
use super::prompt::{Brief, prompt};
use crate::when::short_day;
use chancery_domain::Entry;

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
    let fits = async |count: usize| {
        let part = prompt(&Brief { entries: &brief.entries[..count], ..*brief });
        fits(drafter, &offer, &part).await
    };
    match largest_that_fits(brief.entries.len(), fits).await? {
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

/// How many of `all`, from the first on, fit together; None where not even none do. Asks few times: most often all fit.
async fn largest_that_fits(
    all: usize,
    fits: impl AsyncFn(usize) -> Result<bool, Fault>,
) -> Result<Option<usize>, Fault> {
    if fits(all).await? {
        return Ok(Some(all));
    }
    if all == 0 || !fits(0).await? {
        return Ok(None);
    }
    let (mut fitting, mut too_many) = (0, all);
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        if fits(middle).await? { fitting = middle } else { too_many = middle }
    }
    Ok(Some(fitting))
}

fn too_many(offer: &Offer, brief: &Brief<'_>, left: &[Entry]) -> Failure {
    let named = |entry: &Entry| format!("“{}” ({})", entry.title, short_day(entry.at, brief.today));
    let names = left.iter().map(named).collect::<Vec<_>>().join(", ");
    let (it, them) = if left.len() == 1 { ("this does", "it") } else { ("these do", "them") };
    let words = format!(
        "The model holds {} tokens at once, and beside a reply of {} {it} not fit: {names}. Your text is untouched and \
         nothing was billed; untick {them}, or shorten the longest reply.",
        grouped(offer.context_tokens),
        grouped(brief.max_output_tokens),
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
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let taken = |count: usize| base + sizes[..count].iter().sum::<u32>();
            let found = runtime.block_on(largest_that_fits(sizes.len(), async |count| Ok(taken(count) <= room))).unwrap();
            let expected = (0..=sizes.len()).rev().find(|count| taken(*count) <= room);
            prop_assert_eq!(found, expected);
        }
    }
}
