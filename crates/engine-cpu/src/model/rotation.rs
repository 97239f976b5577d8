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
