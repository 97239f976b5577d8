//! Whether one of two requests takes longer, found from many pairs of them, one right after the other. What else the machine does
//! changes slowly, so neighbours are compared, and single slow requests hardly count.

use std::time::Duration;

/// How far from a half the part of pairs may be in which the one takes longer than the other, with 2,000 pairs. With no difference
/// at all it is further off once in some thousand million runs; one query more on one side gave 0.10 to 0.31 on a machine with
/// eight times as much to do as it can.
pub const MAX_LEANING: f64 = 0.08;

/// In what part of the pairs the first takes longer, less a half.
pub fn leaning(pairs: &[(Duration, Duration)]) -> f64 {
    let longer = pairs.iter().filter(|(first, second)| first > second).count();
    let alike = pairs.iter().filter(|(first, second)| first == second).count();
    (longer as f64 + alike as f64 / 2.0) / pairs.len() as f64 - 0.5
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Randomness, SeededRandomness};

    #[test]
    fn a_difference_in_time_is_seen_through_far_larger_noise() {
        const PAIRS: usize = 2_000;
        let randomness = SeededRandomness::new(7);
        let noisy = |more_ns: u64| Duration::from_nanos(800_000 + more_ns + randomness.next_u64() % 400_000);
        let alike: Vec<_> = (0..PAIRS).map(|_| (noisy(0), noisy(0))).collect();
        assert!(leaning(&alike).abs() < MAX_LEANING / 2.0, "{}", leaning(&alike));
        let differing: Vec<_> = (0..PAIRS).map(|_| (noisy(70_000), noisy(0))).collect();
        assert!(leaning(&differing) > MAX_LEANING, "{}", leaning(&differing));
    }
}
