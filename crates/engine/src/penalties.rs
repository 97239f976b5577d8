//! Penalties against repeated text: they lower the logits of tokens that would repeat what is already there, before the
//! temperature applies.

/// How much repeated tokens are penalised. Applied in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides the positive logits, and multiplies the negative ones, of tokens that the prompt or the reply has. 1
    /// disables it.
    pub repetition: f32,
    /// Subtracted from a token's logit for each time the reply has it. 0 disables it.
    pub frequency: f32,
    /// Subtracted from the logit of every token that the reply has. 0 disables it.
    pub presence: f32,
    pub dry: Dry,
}

/// DRY ("don't repeat yourself"): penalises the token that would continue a repeated sequence of prompt and reply, by
/// `multiplier × base^(length of the sequence − allowed_length)`, if the sequence is at least `allowed_length` tokens
/// long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dry {
    /// 0 disables it.
    pub multiplier: f32,
    pub base: f32,
    pub allowed_length: u32,
}

impl Penalties {
    pub const NONE: Self = Self { repetition: 1.0, frequency: 0.0, presence: 0.0, dry: Dry::NONE };

    /// Whether they change no logit. DRY's other values do not matter where its multiplier disables it.
    pub fn is_none(&self) -> bool {
        *self == Self { dry: self.dry, ..Self::NONE } && self.dry.is_none()
    }
}

impl Dry {
    /// Disabled, with the usual values for the rest.
    pub const NONE: Self = Self { multiplier: 0.0, base: 1.75, allowed_length: 2 };

    /// Whether it is disabled. A base below 1 disables it too, as in llama.cpp.
    pub fn is_none(&self) -> bool {
        !(self.multiplier > 0.0 && self.base >= 1.0)
    }
}

impl Default for Penalties {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_are_none_exactly_if_each_is_disabled() {
        let base_only =
            Penalties { dry: Dry { base: 3.0, allowed_length: 9, ..Dry::NONE }, ..Penalties::NONE };
        assert!(Penalties::default().is_none() && base_only.is_none());
        let some = [
            Penalties { repetition: 1.1, ..Penalties::NONE },
            Penalties { frequency: -0.5, ..Penalties::NONE },
            Penalties { presence: 0.1, ..Penalties::NONE },
            Penalties { dry: Dry { multiplier: 0.8, ..Dry::NONE }, ..Penalties::NONE },
        ];
        assert!(some.iter().all(|penalties| !penalties.is_none()));
    }
}
