//! Merges adjacent symbols, best pair first and leftmost among equals, until no pair merges. Short words are rescanned
//! after each merge. Long ones use a heap, so that a megabyte of one letter takes O(n log n) steps, not O(n²).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Id of a symbol that is not in the vocabulary.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Up to this length, scanning beats a heap.
const MAX_LINEAR_SYMBOLS: usize = 32;

/// A piece of the text: its start and length in bytes, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) id: u32,
}

/// The merge of two neighbours: the resulting token and its priority, smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) priority: u32,
    pub(super) id: u32,
}

pub(super) fn merge(symbols: &mut Vec<Symbol>, find_merge: impl Fn(Symbol, Symbol) -> Option<Merge>) {
    if symbols.len() <= MAX_LINEAR_SYMBOLS {
        merge_by_scanning(symbols, find_merge);
    } else {
        merge_by_heap(symbols, find_merge);
    }
}

fn merge_by_scanning(symbols: &mut Vec<Symbol>, find_merge: impl Fn(Symbol, Symbol) -> Option<Merge>) {
    let mut merges = [None; MAX_LINEAR_SYMBOLS];
    for index in 1..symbols.len() {
        merges[index - 1] = find_merge(symbols[index - 1], symbols[index]);
    }
    while symbols.len() > 1 {
        let pairs = symbols.len() - 1;
        let best = merges[..pairs]
            .iter()
            .enumerate()
            .filter_map(|(index, merge)| merge.map(|merge| (merge.priority, index, merge.id)))
            .min();
        let Some((_, left, id)) = best else { break };
        symbols[left].len += symbols[left + 1].len;
        symbols[left].id = id;
        symbols.remove(left + 1);
        merges.copy_within(left + 1..pairs, left);
        if left > 0 {
            merges[left - 1] = find_merge(symbols[left - 1], symbols[left]);
        }
        if left + 1 < symbols.len() {
            merges[left] = find_merge(symbols[left], symbols[left + 1]);
        }
    }
}

const END: u32 = u32::MAX;

fn merge_by_heap(symbols: &mut Vec<Symbol>, find_merge: impl Fn(Symbol, Symbol) -> Option<Merge>) {
    let count = symbols.len() as u32;
    let mut next: Vec<u32> = (1..count).chain([END]).collect();
    let mut previous: Vec<u32> = [END].into_iter().chain(0..count - 1).collect();
    // Priority, left index, and the pair's lengths when it was pushed: a pair that has changed since is skipped.
    let mut heap = BinaryHeap::with_capacity(symbols.len());
    let push = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
        let (left_symbol, right_symbol) = (symbols[left as usize], symbols[right as usize]);
        if let Some(merge) = find_merge(left_symbol, right_symbol) {
            heap.push(Reverse((merge.priority, left, left_symbol.len, right_symbol.len, merge.id)));
        }
    };
    for right in 1..count {
        push(&mut heap, symbols, right - 1, right);
    }
    while let Some(Reverse((_, left, left_len, right_len, id))) = heap.pop() {
        let right = next[left as usize];
        // A symbol merged into another has length zero, so it never equals the recorded length.
        if right == END || symbols[left as usize].len != left_len || symbols[right as usize].len != right_len
        {
            continue;
        }
        symbols[left as usize].len += right_len;
        symbols[left as usize].id = id;
        symbols[right as usize].len = 0;
        let after = next[right as usize];
        next[left as usize] = after;
        if after != END {
            previous[after as usize] = left;
            push(&mut heap, symbols, left, after);
        }
        let before = previous[left as usize];
        if before != END {
            push(&mut heap, symbols, before, left);
        }
    }
    symbols.retain(|symbol| symbol.len > 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn symbols(ids: &[u32]) -> Vec<Symbol> {
        ids.iter().enumerate().map(|(index, id)| Symbol { start: index as u32, len: 1, id: *id }).collect()
    }

    proptest! {
        #[test]
        fn both_bpe_merge_algorithms_agree(
            ids in proptest::collection::vec(0_u32..4, 0..MAX_LINEAR_SYMBOLS),
            rules in proptest::collection::hash_map((0_u32..12, 0_u32..12), (0_u32..6, 4_u32..12), 0..40),
        ) {
            let find_merge = |left: Symbol, right: Symbol| {
                rules.get(&(left.id, right.id)).map(|(priority, id)| Merge { priority: *priority, id: *id })
            };
            let mut scanned = symbols(&ids);
            merge_by_scanning(&mut scanned, find_merge);
            let mut heaped = symbols(&ids);
            if heaped.len() > 1 {
                merge_by_heap(&mut heaped, find_merge);
            }
            prop_assert_eq!(scanned, heaped);
        }
    }
}
