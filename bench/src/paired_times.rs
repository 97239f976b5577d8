//! Finds out whether one of two requests takes longer, from many pairs sent one right after the other. The load of the machine
//! changes slowly, so comparing neighbours cancels it out, and single slow requests hardly matter.

use std::time::Duration;

/// How far from one half the share of pairs in which one side takes longer may be, with 2,000 pairs. Without a difference, it is
/// further off once in several billion runs. One more query on one side gave 0.10 to 0.31 on a machine loaded to eight times its
/// capacity.
pub const MAX_LEANING: f64 = 0.08;

/// Returns the share of pairs in which the first takes longer, minus one half.
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
    fn time_difference_is_detected_despite_larger_noise() {
        const PAIRS: usize = 2_000;
        let randomness = SeededRandomness::new(7);
        let noisy = |more_ns: u64| Duration::from_nanos(800_000 + more_ns + randomness.next_u64() % 400_000);
        let alike: Vec<_> = (0..PAIRS).map(|_| (noisy(0), noisy(0))).collect();
        assert!(leaning(&alike).abs() < MAX_LEANING / 2.0, "{}", leaning(&alike));
        let differing: Vec<_> = (0..PAIRS).map(|_| (noisy(70_000), noisy(0))).collect();
        assert!(leaning(&differing) > MAX_LEANING, "{}", leaning(&differing));
    }
}
