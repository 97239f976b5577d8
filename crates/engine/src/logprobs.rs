//! Log probabilities of generated tokens, for callers who ask for them.

/// Maximum number of alternatives that a caller may ask for at each position; OpenAI's limit.
pub const MAX_TOP_LOGPROBS: u8 = 20;

/// One token of the reply, and the tokens that were most likely at its position, the most likely first.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub token: TokenLogprob,
    /// As many as the job asked for; may include the chosen token.
    pub top: Vec<TokenLogprob>,
}

/// A token as the bytes it stands for, which need not be whole characters, with the natural logarithm of its
/// probability: of the model itself, before temperature, filters and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub bytes: Vec<u8>,
    pub logprob: f32,
}
