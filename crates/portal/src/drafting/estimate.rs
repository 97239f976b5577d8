//! The highest cost of a draft, before it is requested. A token is at least one byte of text, so the bytes of the prompt
//! bound its tokens; the model's context bounds them too. The script recomputes it from the same numbers (`draft.js`).

use super::limits::{MAX_PURPOSE_CHARS, OUTPUT_TOKENS, PROMPT_FRAME_TOKENS};
use super::model_offer::ModelOffer;
use super::prompt::{Brief, entry_notes, prompt};
use super::tuning::ModelSize;
use crate::time_format::LocalTime;
use chancery_domain::{Client, Entry};

/// The numbers behind the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CostEstimate {
    pub(super) text: String,
    pub(super) context_tokens: u32,
    pub(super) input_nanos: i64,
    pub(super) output_nanos: i64,
    pub(super) currency_prefix: String,
    /// The most input tokens without the purpose and the entries.
    pub(super) fixed_input_tokens: u32,
    pub(super) min_output_tokens: u32,
    pub(super) max_output_tokens: u32,
}

/// The most tokens of an entry in the prompt: its text, as it is or as notes, with its heading and fences or its label.
pub(super) fn max_entry_tokens(entry: &Entry, client: &Client) -> u32 {
    let text_bytes = entry.text.as_str().len().max(entry_notes(entry, client).len());
    bytes(entry.title.as_str().len() + text_bytes).saturating_add(PROMPT_FRAME_TOKENS)
}

/// The most input tokens without the purpose and the entries.
pub(super) fn fixed_input_tokens(
    firm_name: &str,
    client: &Client,
    local: &LocalTime,
    size: ModelSize,
) -> u32 {
    let brief = Brief {
        firm_name,
        writer: "",
        purpose: "",
        local,
        client,
        entries: &[],
        max_output_tokens: 0,
        size,
        attempt: 0,
    };
    let prompt = prompt(&brief);
    // The writer's name, up to twice, and what the model's chat template adds.
    bytes(prompt.instructions.len() + prompt.input.len()).saturating_add(3 * PROMPT_FRAME_TOKENS)
}

impl CostEstimate {
    /// `entry_tokens` are of all entries that can be selected, because the selection changes without a request.
    pub(super) fn new(
        model_offer: &ModelOffer,
        fixed_input_tokens: u32,
        entry_tokens: u32,
        output_tokens: u32,
    ) -> Self {
        let max_purpose_tokens = bytes(MAX_PURPOSE_CHARS * char::MAX.len_utf8());
        let input = fixed_input_tokens.saturating_add(entry_tokens).saturating_add(max_purpose_tokens);
        Self {
            text: model_offer.max_cost_text(input, output_tokens).unwrap_or_default(),
            context_tokens: model_offer.context_tokens,
            input_nanos: model_offer.prices.input.nanos_per_token(),
            output_nanos: model_offer.prices.output.nanos_per_token(),
            currency_prefix: model_offer.currency_prefix(),
            fixed_input_tokens,
            min_output_tokens: *OUTPUT_TOKENS.start(),
            max_output_tokens: *OUTPUT_TOKENS.end(),
        }
    }
}

fn bytes(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::prompt::tests::{client, entry};
    use super::*;
    use chancery_domain::UnixMillis;

    #[test]
    fn fixed_input_and_entries_cover_the_whole_prompt() {
        let (client, local) = (client(), LocalTime::utc(UnixMillis(1_794_497_400_000)));
        let brief = Brief {
            firm_name: "Marlow & Finch",
            writer: "maya@example.com",
            purpose: "",
            local: &local,
            client: &client,
            entries: &[],
            max_output_tokens: 600,
            size: ModelSize::Large,
            attempt: 0,
        };
        // Texts that grow in the second person and by marks of labels.
        let texts = ["Priya Raman is in. ".to_owned() + &"He is his. ".repeat(200), "Notes:\n".repeat(100)];
        let entries = texts.map(|text| entry(6, "Call", &text));
        for size in ModelSize::ALL {
            let bytes = |entries: &[Entry]| {
                let whole = prompt(&Brief { size, entries, ..brief });
                u32::try_from(whole.instructions.len() + whole.input.len()).unwrap()
            };
            let fixed = fixed_input_tokens("Marlow & Finch", &client, &local, size);
            assert!(fixed >= bytes(&[]), "{size:?}");
            let entry_tokens: u32 = entries.iter().map(|entry| max_entry_tokens(entry, &client)).sum();
            assert!(fixed + entry_tokens >= bytes(&entries), "{size:?}");
        }
    }
}
