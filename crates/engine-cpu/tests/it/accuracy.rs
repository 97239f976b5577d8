//! The arithmetic against an f32 implementation and against llama.cpp, on the same file.

use crate::{Reference, model_path, references};
use chancery_engine_cpu::Evaluation;

/// Weights are exact and activations f32 here; only the half-precision cache rounds.
const MAX_ERROR_AGAINST_F32: f64 = 0.01;
/// llama.cpp rounds activations to eight bits; this is how far that moves a likely token's log-probability.
const MAX_ERROR_AGAINST_LLAMA_CPP: f64 = 0.5;
const MAX_MEAN_ERROR_AGAINST_LLAMA_CPP: f64 = 0.1;
/// Only tokens at least this likely are compared with llama.cpp's.
const LIKELY: f64 = -4.0;
/// Below this margin between llama.cpp's two best, the best may differ.
const CLOSE: f64 = 0.2;

fn best(log_probabilities: &[f64]) -> usize {
    let ids = 0..log_probabilities.len();
    ids.max_by(|a, b| log_probabilities[*a].total_cmp(&log_probabilities[*b])).unwrap()
}

#[test]
fn first_step_log_probabilities_equal_those_of_an_f32_implementation() {
    let mut evaluation = Evaluation::load(&model_path(), 1_024, 2).unwrap();
    for Reference { prompt_ids, f32_first_step_top, .. } in references() {
        evaluation.restart();
        let next = evaluation.extend(&prompt_ids);
        for (id, wanted) in f32_first_step_top {
            let error = (next[id as usize] - wanted).abs();
            assert!(error < MAX_ERROR_AGAINST_F32, "token {id}: {} instead of {wanted}", next[id as usize]);
        }
    }
}

#[test]
fn every_step_along_llama_cpps_path_agrees_within_its_quantisation_noise() {
    let mut evaluation = Evaluation::load(&model_path(), 1_024, 2).unwrap();
    let mut errors = Vec::new();
    for Reference { prompt_ids, llama_cpp_greedy, .. } in references() {
        evaluation.restart();
        let mut next = evaluation.extend(&prompt_ids);
        for step in llama_cpp_greedy {
            let margin = step.top[0].1 - step.top[1].1;
            assert!(best(&next) == step.id as usize || margin < CLOSE, "parts at a margin of {margin}");
            let likely = step.top.iter().filter(|(_, wanted)| *wanted > LIKELY);
            errors.extend(likely.map(|(id, wanted)| (next[*id as usize] - wanted).abs()));
            next = evaluation.extend(&[step.id]);
        }
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("{} log-probabilities against llama.cpp: worst {worst:.4}, mean {mean:.4}", errors.len());
    assert!(
        worst < MAX_ERROR_AGAINST_LLAMA_CPP && mean < MAX_MEAN_ERROR_AGAINST_LLAMA_CPP,
        "{worst}, {mean}"
    );
}

#[test]
fn a_prompt_in_pieces_gives_the_same_numbers_as_in_one() {
    let mut evaluation = Evaluation::load(&model_path(), 1_024, 2).unwrap();
    let prompt = references().into_iter().map(|reference| reference.prompt_ids).max_by_key(Vec::len).unwrap();
    let whole = evaluation.extend(&prompt);
    for piece in [1, 7, 64, 100] {
        evaluation.restart();
        let pieces: Vec<Vec<f64>> = prompt.chunks(piece).map(|tokens| evaluation.extend(tokens)).collect();
        assert!(pieces.last() == Some(&whole), "in pieces of {piece}");
    }
}
