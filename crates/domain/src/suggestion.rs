//! "Did you mean …": the known name nearest to a mistyped one.

/// The candidate that a person most likely meant, if any is near enough to be worth naming.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this Jaro-Winkler similarity a suggestion would be a guess.
    const NEAR_ENOUGH: f64 = 0.8;
    let folded = typed.to_ascii_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&folded, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= NEAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_matched_and_a_stranger_is_not() {
        let known = ["model", "instructions", "input", "max_output_tokens"];
        assert_eq!(nearest("max_tokens", known), Some("max_output_tokens"));
        assert_eq!(nearest("Instruction", known), Some("instructions"));
        assert_eq!(nearest("max-output-tokens", known), Some("max_output_tokens"));
        assert_eq!(nearest("zebra", known), None);
    }
}
