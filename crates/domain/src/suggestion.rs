//! "Did you mean …": the known name nearest to a mistyped one.

/// The candidate that the user most likely meant, if any is similar enough to suggest.
pub fn closest_match<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this Jaro-Winkler similarity a suggestion would be a guess.
    const MIN_SIMILARITY: f64 = 0.8;
    /// Comparing takes the product of both lengths. No known name is nearly as long.
    const MAX_TYPED_BYTES: usize = 100;
    if typed.len() > MAX_TYPED_BYTES {
        return None;
    }
    let folded = typed.to_ascii_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&folded, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typo_gets_suggestion_and_unrelated_name_does_not() {
        let known = ["model", "instructions", "input", "max_output_tokens"];
        assert_eq!(closest_match("max_tokens", known), Some("max_output_tokens"));
        assert_eq!(closest_match("Instruction", known), Some("instructions"));
        assert_eq!(closest_match("max-output-tokens", known), Some("max_output_tokens"));
        assert_eq!(closest_match("zebra", known), None);
        assert_eq!(closest_match(&"model".repeat(1 << 20), known), None, "not compared at all");
    }
}
