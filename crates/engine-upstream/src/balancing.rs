//! Chooses the server for a job: the one with the prompt's prefix cached, unless its load is far above the others';
//! otherwise the least loaded. Load is counted in tokens, because jobs differ in tokens more than servers differ in
//! speed. Pure.

use super::limits::{AFFINITY_LOAD_PERCENT, AFFINITY_SLACK_TOKENS};

/// A server that accepts jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Upper bound on the tokens of its unfinished jobs.
    pub(super) outstanding_tokens: u64,
    /// Relative likelihood that it has this prompt's prefix cached. `None` if nothing is known.
    pub(super) affinity: Option<u64>,
}

/// Returns the index of the chosen candidate, or `None` if there are none. Ties rotate. Each node has its own rotation,
/// so that several nodes do not send their first jobs to the same server.
pub(super) fn choose(candidates: &[Candidate], job_tokens: u64, round_robin: u64) -> Option<usize> {
    let first = usize::try_from(round_robin % (candidates.len().max(1) as u64)).unwrap_or(0);
    let (before, from_first) = candidates.split_at(first);
    let indexed = || (first..).zip(from_first).chain((0..).zip(before));
    let outstanding_total: u64 = candidates.iter().map(|candidate| candidate.outstanding_tokens).sum();
    let mean = (outstanding_total + job_tokens) / (candidates.len().max(1) as u64);
    let bound = (mean * AFFINITY_LOAD_PERCENT / 100).max(mean + AFFINITY_SLACK_TOKENS);
    let preferred = indexed().filter(|(_, candidate)| candidate.affinity.is_some());
    let preferred = preferred.max_by_key(|(_, candidate)| candidate.affinity);
    if let Some((index, candidate)) = preferred
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
        let to_candidate = |(load, name): (&u64, &String)| Candidate {
            outstanding_tokens: *load,
            affinity: key.map(|key| key.score(name)),
        };
        loads.iter().zip(names).map(to_candidate).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("http://10.0.0.{number}:8000/v1")).collect()
    }

    fn key(account: i64, instructions: &str) -> AffinityKey {
        AffinityKey::of(AccountId(account), &Turn::from_instructions_and_input(instructions, "x")).unwrap()
    }

    #[test]
    fn request_without_affinity_goes_to_the_least_loaded_server() {
        assert_eq!(choose(&candidates(&[500, 20, 90], None, &names(3)), 10, 0), Some(1));
        assert_eq!(choose(&[], 10, 7), None);
        assert_eq!(AffinityKey::of(AccountId(1), &[Turn::user("x")]), None);
    }

    #[test]
    fn equally_loaded_servers_are_used_round_robin() {
        let chosen =
            |round_robin| choose(&candidates(&[5, 5, 9, 5], None, &names(4)), 10, round_robin).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(chosen), [0, 1, 3, 3, 0, 1]);
    }

    #[test]
    fn adding_a_server_moves_only_the_keys_it_wins() {
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
    fn same_instructions_of_different_accounts_spread_over_servers() {
        let used_servers: std::collections::BTreeSet<_> = (0..50)
            .map(|account| {
                choose(&candidates(&[0; 4], Some(key(account, "same")), &names(4)), 10, 0).unwrap()
            })
            .collect();
        assert_eq!(used_servers.len(), 4);
    }

    proptest! {
        #[test]
        fn affinity_never_overloads_a_server(
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
