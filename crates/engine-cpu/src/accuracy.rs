//! Compares two implementations' predictions for the same text. Used to hold the served arithmetic against f32 and against
//! llama.cpp; serving does not need it.

use crate::evaluation::LogprobEvaluator;

/// Tokens per step. The result does not depend on it; a row of every token is in memory at once.
const STEP_TOKENS: usize = 32;

/// Returns the log-probabilities of the next token after each token except the last.
///
/// # Panics
/// If there are fewer than two tokens, and like `LogprobEvaluator::extend`.
pub fn text_logprobs(evaluator: &mut LogprobEvaluator, tokens: &[u32]) -> Vec<Vec<f32>> {
    assert!(tokens.len() > 1, "a text needs at least two tokens");
    evaluator.restart();
    tokens[..tokens.len() - 1]
        .chunks(STEP_TOKENS)
        .flat_map(|step| evaluator.extend_all(step))
        .map(|logprobs| logprobs.into_iter().map(|logprob| logprob as f32).collect())
        .collect()
}

/// Log-probabilities from another implementation's logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    logits.iter().map(|logit| (f64::from(logit - top) - total.ln()) as f32).collect()
}

/// How far a candidate's predictions are from a reference's, over the positions of a text.
#[derive(Clone, Debug, Default)]
pub struct LogprobComparison {
    positions: usize,
    reference_logprob: f64,
    candidate_logprob: f64,
    kl: f64,
    agreeing: usize,
}

impl LogprobComparison {
    /// Compares whole texts: `rows` after each token except the last, as from `text_logprobs`.
    ///
    /// # Panics
    /// If the numbers of rows do not match the tokens, or two rows differ in length.
    pub fn of_text(reference: &[Vec<f32>], candidate: &[Vec<f32>], tokens: &[u32]) -> Self {
        assert_eq!((reference.len() + 1, candidate.len() + 1), (tokens.len(), tokens.len()), "rows");
        let mut comparison = Self::default();
        for ((reference, candidate), next) in reference.iter().zip(candidate).zip(&tokens[1..]) {
            comparison.add(reference, candidate, *next);
        }
        comparison
    }

    /// Adds a position: the log-probabilities by both, and the token that follows in the text.
    ///
    /// # Panics
    /// If the two differ in length, or the token is outside the vocabulary.
    pub fn add(&mut self, reference: &[f32], candidate: &[f32], next: u32) {
        assert_eq!(reference.len(), candidate.len(), "vocabularies differ");
        self.positions += 1;
        self.reference_logprob += f64::from(reference[next as usize]);
        self.candidate_logprob += f64::from(candidate[next as usize]);
        let divergence = |(reference, candidate): (&f32, &f32)| {
            let (reference, candidate) = (f64::from(*reference), f64::from(*candidate));
            // A token that the reference rules out adds nothing.
            if reference.is_infinite() { 0.0 } else { reference.exp() * (reference - candidate) }
        };
        self.kl += reference.iter().zip(candidate).map(divergence).sum::<f64>();
        self.agreeing += usize::from(argmax(reference) == argmax(candidate));
    }

    pub fn reference_perplexity(&self) -> f64 {
        self.mean(-self.reference_logprob).exp()
    }

    pub fn perplexity(&self) -> f64 {
        self.mean(-self.candidate_logprob).exp()
    }

    /// Mean Kullback-Leibler divergence of the candidate from the reference, in nats.
    pub fn mean_kl(&self) -> f64 {
        self.mean(self.kl)
    }

    /// The share of positions at which both have the same most likely token.
    pub fn top1_agreement(&self) -> f64 {
        self.mean(self.agreeing as f64)
    }

    fn mean(&self, total: f64) -> f64 {
        total / self.positions.max(1) as f64
    }
}

fn argmax(logprobs: &[f32]) -> Option<usize> {
    (0..logprobs.len()).max_by(|a, b| logprobs[*a].total_cmp(&logprobs[*b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(probabilities: &[[f32; 2]]) -> Vec<Vec<f32>> {
        probabilities.iter().map(|row| row.iter().map(|probability| probability.ln()).collect()).collect()
    }

    fn assert_close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-6, "{value}, expected {expected}");
    }

    #[test]
    fn equal_predictions_have_no_divergence() {
        let rows = rows(&[[0.25, 0.75], [0.5, 0.5]]);
        let comparison = LogprobComparison::of_text(&rows, &rows, &[0, 1, 0]);
        assert_close(comparison.mean_kl(), 0.0);
        assert_close(comparison.top1_agreement(), 1.0);
        assert_close(comparison.perplexity(), (1.0 / (0.75_f64 * 0.5)).sqrt());
        assert_close(comparison.reference_perplexity(), comparison.perplexity());
    }

    #[test]
    fn divergence_is_that_of_the_candidate_from_the_reference() {
        let (reference, candidate) = (rows(&[[0.5, 0.5]]), rows(&[[0.25, 0.75]]));
        let comparison = LogprobComparison::of_text(&reference, &candidate, &[0, 1]);
        assert_close(comparison.mean_kl(), 0.5 * 2_f64.ln() + 0.5 * (0.5_f64 / 0.75).ln());
        assert_close(comparison.perplexity(), 1.0 / 0.75);
        assert_close(comparison.reference_perplexity(), 2.0);
    }

    #[test]
    fn different_favourites_do_not_agree() {
        let (reference, candidate) = (rows(&[[0.6, 0.4], [0.6, 0.4]]), rows(&[[0.4, 0.6], [0.7, 0.3]]));
        let comparison = LogprobComparison::of_text(&reference, &candidate, &[0, 0, 0]);
        assert_close(comparison.top1_agreement(), 0.5);
    }

    #[test]
    fn token_that_the_reference_rules_out_adds_nothing() {
        let (reference, candidate) = (rows(&[[0.0, 1.0]]), rows(&[[0.5, 0.5]]));
        let comparison = LogprobComparison::of_text(&reference, &candidate, &[0, 1]);
        assert_close(comparison.mean_kl(), 2_f64.ln());
    }

    #[test]
    fn log_softmax_is_normalised_and_keeps_the_differences() {
        let logprobs = log_softmax(&[1_000.0, 1_001.0]);
        assert_close(f64::from(logprobs[1] - logprobs[0]), 1.0);
        assert_close(logprobs.iter().map(|logprob| f64::from(*logprob).exp()).sum(), 1.0);
    }
}
