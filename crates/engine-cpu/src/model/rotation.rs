//! How positions turn the pairs of a head: the angles, and the ways in which models stretch them over a longer
//! context than they were first trained for. `rope_freqs.weight`, the way of Llama 3, is a tensor and read with them.

use super::architecture::Keys;
use crate::error::Fault;
use std::f64::consts::TAU;

const DEFAULT_BASE: f64 = 10_000.0;
const DEFAULT_BETA_FAST: f64 = 32.0;
const DEFAULT_BETA_SLOW: f64 = 1.0;

#[derive(Clone, Debug)]
pub(super) struct Rotation {
    /// The angle by which each pair turns from one position to the next.
    pub(super) frequencies: Vec<f64>,
    /// What rotated values are multiplied by besides.
    pub(super) magnitude: f64,
}

impl Rotation {
    /// For heads of which `rotated` values turn.
    pub(super) fn read(keys: Keys<'_>, rotated: usize, context_tokens: usize) -> Result<Self, Fault> {
        let base = keys.number("rope.freq_base")?.unwrap_or(DEFAULT_BASE);
        if base <= 1.0 {
            return Err(Fault::malformed(format!("`{}` is {base}", keys.full("rope.freq_base"))));
        }
        let frequencies =
            (0..rotated / 2).map(|pair| base.powf(-2.0 * pair as f64 / rotated as f64)).collect::<Vec<_>>();
        let plain = Self { frequencies, magnitude: 1.0 };
        // The older key for the same factor; a file without a type means linear scaling.
        let factor = match keys.number("rope.scaling.factor")? {
            None => keys.number("rope.scale_linear")?,
            factor => factor,
        };
        let factor = factor.filter(|factor| *factor != 0.0).unwrap_or(1.0);
        if factor < 0.0 {
            return Err(Fault::malformed(format!("`{}` is {factor}", keys.full("rope.scaling.factor"))));
        }
        match keys.string("rope.scaling.type")? {
            Some("none") => Ok(plain),
            None | Some("linear") => Ok(plain.slowed(|_| factor)),
            Some("yarn") => Ok(Yarn::read(keys, factor, context_tokens)?.apply(plain, base)),
            Some(other) => Err(Fault::unsupported(format!("it scales positions by `{other}`"))),
        }
    }

    /// Divides each pair's frequency by what `divisor` says.
    pub(super) fn slowed(mut self, divisor: impl Fn(usize) -> f64) -> Self {
        for (pair, frequency) in self.frequencies.iter_mut().enumerate() {
            *frequency /= divisor(pair);
        }
        self
    }
}

/// YaRN: pairs that turn often within the first context stay as they are, pairs that turn less than once are slowed
/// by the factor, and those between by something between.
struct Yarn {
    factor: f64,
    original_context: f64,
    beta_fast: f64,
    beta_slow: f64,
    log_multiplier: f64,
}

impl Yarn {
    fn read(keys: Keys<'_>, factor: f64, context_tokens: usize) -> Result<Self, Fault> {
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
            return Err(Fault::malformed(format!(
                "YaRN's factor is {factor}, its betas {} and {}, its multiplier {}",
                yarn.beta_fast, yarn.beta_slow, yarn.log_multiplier
            )));
        }
        Ok(yarn)
    }

    /// The pair that turns that many times within the original context, as a fraction.
    fn pair_that_turns(&self, times: f64, rotated: f64, base: f64) -> f64 {
        rotated * (self.original_context / (times * TAU)).ln() / (2.0 * base.ln())
    }

    fn apply(&self, plain: Rotation, base: f64) -> Rotation {
        let rotated = 2.0 * plain.frequencies.len() as f64;
        let first = self.pair_that_turns(self.beta_fast, rotated, base).floor().max(0.0);
        let last = self.pair_that_turns(self.beta_slow, rotated, base).ceil().min(rotated - 1.0);
        let mut rotation = plain.slowed(|pair| {
            let slowed = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            1.0 / (slowed / self.factor + (1.0 - slowed))
        });
        let grown = |multiplier: f64| 0.1 * multiplier * self.factor.ln() + 1.0;
        rotation.magnitude = grown(1.0) / grown(self.log_multiplier);
        rotation
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

    fn rotation(writer: GgufWriter) -> Result<Rotation, Fault> {
        let bytes = writer.finish();
        let len = bytes.len() as u64;
        let file = Gguf::read(Cursor::new(bytes), len)?;
        let keys = Keys { metadata: file.metadata(), architecture: Architecture::Llama };
        Rotation::read(keys, 64, 4_096)
    }

    fn scaled(kind: &str, base: f32, factor: f32) -> GgufWriter {
        GgufWriter::new()
            .string("llama.rope.scaling.type", kind)
            .f32("llama.rope.freq_base", base)
            .f32("llama.rope.scaling.factor", factor)
    }

    #[test]
    fn a_factor_without_a_type_is_linear_and_none_means_none() {
        let slowest = |writer: GgufWriter| rotation(writer).unwrap().frequencies[31];
        let plain = slowest(GgufWriter::new());
        let quarter = plain / 4.0;
        let close = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 1e-12;
        assert!(close(slowest(GgufWriter::new().f32("llama.rope.scaling.factor", 4.0)), quarter));
        assert!(close(slowest(GgufWriter::new().f32("llama.rope.scale_linear", 4.0)), quarter));
        assert!(close(slowest(scaled("linear", 10_000.0, 4.0)), quarter));
        assert!(close(slowest(scaled("none", 10_000.0, 4.0)), plain));
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        assert!(rotation(GgufWriter::new().f32("llama.rope.freq_base", 0.0)).is_err());
        assert!(rotation(scaled("linear", 10_000.0, -1.0)).is_err());
        assert!(rotation(scaled("yarn", 10_000.0, 0.5)).is_err());
        let beta_slow = |beta| scaled("yarn", 10_000.0, 2.0).f32("llama.rope.scaling.yarn_beta_slow", beta);
        assert!(rotation(beta_slow(0.0)).is_err() && rotation(beta_slow(33.0)).is_err());
        let multiplier = scaled("yarn", 10_000.0, 2.0).f32("llama.rope.scaling.yarn_log_multiplier", -9.0);
        assert!(rotation(multiplier).is_err());
    }

    proptest! {
        #[test]
        fn yarn_leaves_fast_pairs_slows_slow_ones_by_the_factor_and_the_rest_by_something_between(
            base in 1_000.0_f32..5e6, factor in 1.0_f32..64.0, original in 64_u32..200_000,
        ) {
            let plain = rotation(scaled("none", base, factor)).unwrap().frequencies;
            let original_length = "llama.rope.scaling.original_context_length";
            let yarn = rotation(scaled("yarn", base, factor).u32(original_length, original)).unwrap();
            prop_assert!((yarn.magnitude - (0.1 * f64::from(factor).ln() + 1.0)).abs() < 1e-12);
            for (yarn, plain) in yarn.frequencies.iter().zip(&plain) {
                let slowed = plain / yarn;
                prop_assert!((0.999_999..=f64::from(factor) * 1.000_001).contains(&slowed));
                // Well beyond the betas, where rounding to whole pairs no longer matters.
                let turns = plain * f64::from(original) / TAU;
                let one_pair = f64::from(base).powf(2.0 / 64.0);
                prop_assert!(turns < DEFAULT_BETA_FAST * one_pair || slowed < 1.000_001);
                prop_assert!(turns > DEFAULT_BETA_SLOW / one_pair || slowed > f64::from(factor) * 0.999_999);
            }
        }
    }
}
