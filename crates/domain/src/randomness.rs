//! Injected randomness. `OsRandomness` is the only code that reads the operating system's.

use std::sync::atomic::{AtomicU64, Ordering};

pub trait Randomness: Send + Sync + 'static {
    fn fill(&self, bytes: &mut [u8]);

    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Suitable for keys and tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRandomness;

impl Randomness for OsRandomness {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the operating system's randomness"
    )]
    #[expect(
        clippy::panic,
        reason = "a machine without randomness cannot make a secret; going on would make a guessable one"
    )]
    fn fill(&self, bytes: &mut [u8]) {
        if let Err(error) = getrandom::fill(bytes) {
            panic!("the operating system gives no random bytes: {error}");
        }
    }
}

/// Deterministic randomness for tests; never for secrets.
#[derive(Debug)]
pub struct SeededRandomness(AtomicU64);

impl SeededRandomness {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Randomness for SeededRandomness {
    /// SplitMix64, a generator whose whole state is one counter.
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }
}
