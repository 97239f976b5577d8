//! Injected randomness. `OsRandomness` is the only code that reads the operating system's.

use std::cell::RefCell;
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

/// What a thread has read from the operating system and not used yet.
struct Unused {
    bytes: [u8; BUFFER_BYTES],
    used: usize,
}

/// Request ids and seeds of 14 requests.
const BUFFER_BYTES: usize = 256;

thread_local! {
    static UNUSED: RefCell<Unused> = const { RefCell::new(Unused { bytes: [0; BUFFER_BYTES], used: BUFFER_BYTES }) };
}

/// The operating system's randomness, read for several uses at once: for request ids and seeds, which every request needs. What
/// is not used yet waits in memory, so it is not for secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferedRandomness;

impl Randomness for BufferedRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        let len = bytes.len();
        if len > BUFFER_BYTES {
            return OsRandomness.fill(bytes);
        }
        UNUSED.with_borrow_mut(|unused| {
            if BUFFER_BYTES - unused.used < len {
                OsRandomness.fill(&mut unused.bytes);
                unused.used = 0;
            }
            let taken = &unused.bytes[unused.used..unused.used + len];
            bytes.copy_from_slice(taken);
            unused.used += len;
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn buffered_bytes_are_used_once_on_all_threads() {
        let draw = || (0..1_000).map(|_| BufferedRandomness.next_u64()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draw)).collect();
        let drawn: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), drawn.len());
    }

    #[test]
    fn buffered_bytes_of_any_length_are_filled() {
        for len in [0, 1, 10, BUFFER_BYTES, BUFFER_BYTES + 1, 1_000] {
            let fills: Vec<Vec<u8>> = (0..40).map(|_| filled(len)).collect();
            // Each byte is zero in all of them once in 2^320 runs.
            assert!((0..len).all(|index| fills.iter().any(|bytes| bytes[index] != 0)), "{len} bytes");
        }
    }

    fn filled(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        BufferedRandomness.fill(&mut bytes);
        bytes
    }
}
