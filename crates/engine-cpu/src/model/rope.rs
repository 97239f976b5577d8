//! RoPE frequencies, and the ways in which models extend them beyond the original training context. Llama 3's way,
//! `rope_freqs.weight`, is a tensor and is applied when the weights are read.

use super::architecture::Keys;
use crate::error::ModelFileError;
use std::f64::consts::TAU;

const DEFAULT_BASE: f64 = 10_000.0;
const DEFAULT_BETA_FAST: f64 = 32.0;
const DEFAULT_BETA_SLOW: f64 = 1.0;

#[derive(Clone, Debug)]
pub(super) struct RopeScaling {
    /// Rotation angle per position, for each pair.
    pub(super) frequencies: Vec<f64>,
    /// Factor on rotated values.
    pub(super) attention_factor: f64,
}

impl RopeScaling {
    /// `rotary_dim` is the number of values per head that RoPE applies to.
    pub(super) fn read(
        keys: Keys<'_>,
        rotary_dim: usize,
        context_tokens: usize,
    ) -> Result<Self, ModelFileError> {
        let base = keys.number("rope.freq_base")?.unwrap_or(DEFAULT_BASE);
        if base <= 1.0 {
            return Err(ModelFileError::malformed(format!("`{}` is {base}", keys.full("rope.freq_base"))));
        }
        let frequencies = (0..rotary_dim / 2)
            .map(|pair| base.powf(-2.0 * pair as f64 / rotary_dim as f64))
            .collect::<Vec<_>>();
        let unscaled = Self { frequencies, attention_factor: 1.0 };
        // `rope.scale_linear` is the older key for the same factor; without a type, scaling is linear.
        let factor = match keys.number("rope.scaling.factor")? {
            None => keys.number("rope.scale_linear")?,
            factor => factor,
        };
        let factor = factor.filter(|factor| *factor != 0.0).unwrap_or(1.0);
        if factor < 0.0 {
            return Err(ModelFileError::malformed(format!(
                "`{}` is {factor}",
                keys.full("rope.scaling.factor")
            )));
        }
        match keys.string("rope.scaling.type")? {
            Some("none") => Ok(unscaled),
            None | Some("linear") => Ok(unscaled.scaled_by(|_| factor)),
            Some("yarn") => Ok(Yarn::read(keys, factor, context_tokens)?.apply(unscaled, base)),
            Some(other) => Err(ModelFileError::unsupported(format!("RoPE scaling type `{other}`"))),
        }
    }

    /// Divides each pair's frequency by `divisor(pair)`.
    pub(super) fn scaled_by(mut self, divisor: impl Fn(usize) -> f64) -> Self {
        for (pair, frequency) in self.frequencies.iter_mut().enumerate() {
            *frequency /= divisor(pair);
        }
        self
    }
}

/// YaRN: pairs that rotate often within the original context keep their frequency, pairs that rotate less than once are
/// slowed by the factor, and those between are interpolated.
struct Yarn {
    factor: f64,
    original_context: f64,
    beta_fast: f64,
    beta_slow: f64,
    log_multiplier: f64,
}

impl Yarn {
    fn read(keys: Keys<'_>, factor: f64, context_tokens: usize) -> Result<Self, ModelFileError> {
        let original = "rope.scaling.original_context_length";
        let yarn = Self {
            factor,
            original_context: keys.size_or(original, usize::MAX, context_tokens)? as f64,
            beta_fast: keys.number("rope.scaling.yarn_beta_fast")?.unwrap_or(DEFAULT_BETA_FAST),
            beta_slow: keys.number("rope.scaling.yarn_beta_slow")?.unwrap_or(DEFAULT_BETA_SLOW),
            log_multiplier: keys.number("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0),
        };
        let in_order = 0.0 < yarn.beta_slow && yarn.beta_slow < yarn.beta_fast;
        if yarn.factor < 1.0 || !in_order || yarn.log_multiplier < 0.0 {
            return Err(ModelFileError::malformed(format!(
                "YaRN's factor is {factor}, its betas {} and {}, its multiplier {}",
                yarn.beta_fast, yarn.beta_slow, yarn.log_multiplier
            )));
        }
        Ok(yarn)
    }

    /// The pair, as a fractional index, that rotates this many times within the original context.
    fn correction_dim(&self, times: f64, rotary_dim: f64, base: f64) -> f64 {
        rotary_dim * (self.original_context / (times * TAU)).ln() / (2.0 * base.ln())
    }

    fn apply(&self, unscaled: RopeScaling, base: f64) -> RopeScaling {
        let rotary_dim = 2.0 * unscaled.frequencies.len() as f64;
        let first = self.correction_dim(self.beta_fast, rotary_dim, base).floor().max(0.0);
        let last = self.correction_dim(self.beta_slow, rotary_dim, base).ceil().min(rotary_dim - 1.0);
        let mut rope = unscaled.scaled_by(|pair| {
            let ramp = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            1.0 / (ramp / self.factor + (1.0 - ramp))
        });
        let mscale = |multiplier: f64| 0.1 * multiplier * self.factor.ln() + 1.0;
        rope.attention_factor = mscale(1.0) / mscale(self.log_multiplier);
        rope
    }
}

#[cfg(test)]
mod tests {
    use super::super::architecture::Architecture;
    use super::*;
    use crate::gguf::Gguf;
    use crate::gguf::writer::GgufWriter;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn rope(writer: GgufWriter) -> Result<RopeScaling, ModelFileError> {
        let bytes = writer.finish();
        let len = bytes.len() as u64;
        let file = Gguf::read(Cursor::new(bytes), len)?;
        let keys = Keys { metadata: file.metadata(), architecture: Architecture::Llama };
        RopeScaling::read(keys, 64, 4_096)
    }

    fn scaled(kind: &str, base: f32, factor: f32) -> GgufWriter {
        GgufWriter::new()
            .string("llama.rope.scaling.type", kind)
            .f32("llama.rope.freq_base", base)
            .f32("llama.rope.scaling.factor", factor)
    }

    #[test]
    fn rope_scaling_factor_without_a_type_is_linear() {
        let slowest = |writer: GgufWriter| rope(writer).unwrap().frequencies[31];
        let unscaled = slowest(GgufWriter::new());
        let quarter = unscaled / 4.0;
        let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-12;
        assert!(close(slowest(GgufWriter::new().f32("llama.rope.scaling.factor", 4.0)), quarter));
        assert!(close(slowest(GgufWriter::new().f32("llama.rope.scale_linear", 4.0)), quarter));
        assert!(close(slowest(scaled("linear", 10_000.0, 4.0)), quarter));
        assert!(close(slowest(scaled("none", 10_000.0, 4.0)), unscaled));
    }

    #[test]
    fn invalid_rope_parameters_are_rejected() {
        assert!(rope(GgufWriter::new().f32("llama.rope.freq_base", 0.0)).is_err());
        assert!(rope(scaled("linear", 10_000.0, -1.0)).is_err());
        assert!(rope(scaled("yarn", 10_000.0, 0.5)).is_err());
        let beta_slow = |beta| scaled("yarn", 10_000.0, 2.0).f32("llama.rope.scaling.yarn_beta_slow", beta);
        assert!(rope(beta_slow(0.0)).is_err() && rope(beta_slow(33.0)).is_err());
        let multiplier = scaled("yarn", 10_000.0, 2.0).f32("llama.rope.scaling.yarn_log_multiplier", -9.0);
        assert!(rope(multiplier).is_err());
    }

    proptest! {
        #[test]
        fn yarn_keeps_high_frequencies_and_scales_low_ones_by_the_factor(
            base in 1_000.0_f32..5e6, factor in 1.0_f32..64.0, original in 64_u32..200_000,
        ) {
            let unscaled = rope(scaled("none", base, factor)).unwrap().frequencies;
            let original_length = "llama.rope.scaling.original_context_length";
            let yarn = rope(scaled("yarn", base, factor).u32(original_length, original)).unwrap();
            prop_assert!((yarn.attention_factor - (0.1 * f64::from(factor).ln() + 1.0)).abs() < 1e-12);
            for (yarn, unscaled) in yarn.frequencies.iter().zip(&unscaled) {
                let divisor = unscaled / yarn;
                prop_assert!((0.999_999..=f64::from(factor) * 1.000_001).contains(&divisor));
                // Well beyond the betas, where rounding to whole pairs no longer matters.
                let rotations = unscaled * f64::from(original) / TAU;
                let one_pair = f64::from(base).powf(2.0 / 64.0);
                prop_assert!(rotations < DEFAULT_BETA_FAST * one_pair || divisor < 1.000_001);
                prop_assert!(rotations > DEFAULT_BETA_SLOW / one_pair || divisor > f64::from(factor) * 0.999_999);
            }
        }
    }
}
