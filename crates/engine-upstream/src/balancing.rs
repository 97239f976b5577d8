//! Which of several servers gets a job: the one that knows the prompt's beginning unless it has much more to do than the
//! others, else the one with the least to do. What a server has to do is counted in tokens, because jobs differ more in these
//! than servers do. Pure.

use super::limits::{AFFINITY_LOAD_PERCENT, AFFINITY_SLACK_TOKENS};

/// A server that takes jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The most that the jobs may have which it was given and has not ended.
    pub(super) outstanding_tokens: u64,
    /// How likely it is to know the beginning of this job's prompt, compared with the others; None where nothing is known.
    pub(super) affinity: Option<u64>,
}

/// The index of the one to take; None where there is none. Between equals they take turns: each node has turns of its own, so
/// that several nodes do not send their first jobs to the same server.
pub(super) fn choose(candidates: &[Candidate], job_tokens: u64, turn: u64) -> Option<usize> {
    let first = usize::try_from(turn % (candidates.len().max(1) as u64)).unwrap_or(0);
    let (before, from_first) = candidates.split_at(first);
    let indexed = || (first..).zip(from_first).chain((0..).zip(before));
    let outstanding_total: u64 = candidates.iter().map(|candidate| candidate.outstanding_tokens).sum();
    let mean = (outstanding_total + job_tokens) / (candidates.len().max(1) as u64);
    let bound = (mean * AFFINITY_LOAD_PERCENT / 100).max(mean + AFFINITY_SLACK_TOKENS);
    let nearest = indexed().filter(|(_, candidate)| candidate.affinity.is_some());
    let nearest = nearest.max_by_key(|(_, candidate)| candidate.affinity);
    if let Some((index, candidate)) = nearest
        && candidate.outstanding_tokens + job_tokens <= bound
    {
        return Some(index);
    }
    let by_load = |(_, candidate): &(usize, &Candidate)| {
        (candidate.outstanding_tokens, std::cmp::Reverse(candidate.affinity))
    };
    indexed().min_by_key(by_load).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::AffinityKey;
    use chancery_domain::AccountId;
    use chancery_engine::Turn;
    use proptest::prelude::*;

    fn candidates(loads: &[u64], key: Option<AffinityKey>, names: &[String]) -> Vec<Candidate> {
        let of = |(load, name): (&u64, &String)| Candidate {
            outstanding_tokens: *load,
            affinity: key.map(|key| key.score(name)),
        };
        loads.iter().zip(names).map(of).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("http://10.0.0.{number}:8000/v1")).collect()
    }

    fn key(account: i64, instructions: &str) -> AffinityKey {
        AffinityKey::of(AccountId(account), &Turn::instructions_and_input(instructions, "x")).unwrap()
    }

    #[test]
    fn without_a_known_beginning_the_least_outstanding_tokens_win() {
        assert_eq!(choose(&candidates(&[500, 20, 90], None, &names(3)), 10, 0), Some(1));
        assert_eq!(choose(&[], 10, 7), None);
        assert_eq!(AffinityKey::of(AccountId(1), &[Turn::user("x")]), None);
    }

    #[test]
    fn equals_take_turns() {
        let chosen = |turn| choose(&candidates(&[5, 5, 9, 5], None, &names(4)), 10, turn).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(chosen), [0, 1, 3, 3, 0, 1]);
    }

    #[test]
    fn a_server_that_comes_or_goes_moves_only_the_keys_that_it_wins() {
        let (few, many) = (names(4), names(5));
        let mut moved = 0;
        for number in 0..1_000 {
            let key = key(number, "the same instructions");
            let before = choose(&candidates(&[0; 4], Some(key), &few), 10, 0).unwrap();
            let after = choose(&candidates(&[0; 5], Some(key), &many), 10, 0).unwrap();
            if before != after {
                assert_eq!(after, 4, "only the new one takes keys");
                moved += 1;
            }
        }
        assert!((100..300).contains(&moved), "a fifth of the keys: {moved}");
    }

    #[test]
    fn accounts_with_the_same_instructions_are_apart() {
        let places: std::collections::BTreeSet<_> = (0..50)
            .map(|account| {
                choose(&candidates(&[0; 4], Some(key(account, "same")), &names(4)), 10, 0).unwrap()
            })
            .collect();
        assert_eq!(places.len(), 4);
    }

    proptest! {
        #[test]
        fn however_popular_its_keys_no_server_has_much_more_than_the_mean(
            jobs in proptest::collection::vec((0_i64..3, 1_u64..5_000), 1..400),
            count in 1_usize..9,
        ) {
            let names = names(count);
            let mut loads = vec![0_u64; count];
            for (account, tokens) in jobs {
                let candidates = candidates(&loads, Some(key(account, "popular")), &names);
                let chosen = choose(&candidates, tokens, tokens).unwrap();
                let mean = (loads.iter().sum::<u64>() + tokens) / count as u64;
                loads[chosen] += tokens;
                let bound = (mean * AFFINITY_LOAD_PERCENT / 100).max(mean + AFFINITY_SLACK_TOKENS);
                prop_assert!(loads[chosen] <= bound.max(mean + tokens), "{} of {mean}", loads[chosen]);
            }
        }
    }
}
