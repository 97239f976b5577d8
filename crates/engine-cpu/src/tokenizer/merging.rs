//! Joins neighbouring symbols, best pair first and leftmost among equals, until no pair joins. Short words are scanned
//! again after each join; long ones keep a heap, so that a megabyte of one letter takes n log n and not n² steps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The id of a symbol that the vocabulary does not hold.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Up to here scanning beats a heap.
const MAX_SCANNED: usize = 32;

/// A piece of the text: where it starts, how long it is in bytes, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) id: u32,
}

/// What two neighbours join into, and how early: smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) priority: u32,
    pub(super) id: u32,
}

pub(super) fn merge(symbols: &mut Vec<Symbol>, join: impl Fn(Symbol, Symbol) -> Option<Join>) {
    if symbols.len() <= MAX_SCANNED { merge_by_scanning(symbols, join) } else { merge_by_heap(symbols, join) }
}

fn merge_by_scanning(symbols: &mut Vec<Symbol>, join: impl Fn(Symbol, Symbol) -> Option<Join>) {
    let mut joins = [None; MAX_SCANNED];
    for index in 1..symbols.len() {
        joins[index - 1] = join(symbols[index - 1], symbols[index]);
    }
    while symbols.len() > 1 {
        let pairs = symbols.len() - 1;
        let best = joins[..pairs]
            .iter()
            .enumerate()
            .filter_map(|(index, join)| join.map(|join| (join.priority, index, join.id)))
            .min();
        let Some((_, left, id)) = best else { break };
        symbols[left].len += symbols[left + 1].len;
        symbols[left].id = id;
        symbols.remove(left + 1);
        joins.copy_within(left + 1..pairs, left);
        if left > 0 {
            joins[left - 1] = join(symbols[left - 1], symbols[left]);
        }
        if left + 1 < symbols.len() {
            joins[left] = join(symbols[left], symbols[left + 1]);
        }
    }
}

const END: u32 = u32::MAX;

fn merge_by_heap(symbols: &mut Vec<Symbol>, join: impl Fn(Symbol, Symbol) -> Option<Join>) {
    let count = symbols.len() as u32;
    let mut next: Vec<u32> = (1..count).chain([END]).collect();
    let mut previous: Vec<u32> = [END].into_iter().chain(0..count - 1).collect();
    // Priority, left index, and what the pair was when it was found: a pair that has changed since is passed over.
    let mut heap = BinaryHeap::with_capacity(symbols.len());
    let push = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
        let (left_symbol, right_symbol) = (symbols[left as usize], symbols[right as usize]);
        if let Some(join) = join(left_symbol, right_symbol) {
            heap.push(Reverse((join.priority, left, left_symbol.len, right_symbol.len, join.id)));
        }
    };
    for right in 1..count {
        push(&mut heap, symbols, right - 1, right);
    }
    while let Some(Reverse((_, left, left_len, right_len, id))) = heap.pop() {
        let right = next[left as usize];
        // A symbol that was joined into another has length zero, so it never equals what was noted.
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
        fn both_ways_of_merging_join_the_same_pairs(
            ids in proptest::collection::vec(0_u32..4, 0..MAX_SCANNED),
            rules in proptest::collection::hash_map((0_u32..12, 0_u32..12), (0_u32..6, 4_u32..12), 0..40),
        ) {
            let join = |left: Symbol, right: Symbol| {
                rules.get(&(left.id, right.id)).map(|(priority, id)| Join { priority: *priority, id: *id })
            };
            let mut scanned = symbols(&ids);
            merge_by_scanning(&mut scanned, join);
            let mut heaped = symbols(&ids);
            if heaped.len() > 1 {
                merge_by_heap(&mut heaped, join);
            }
            prop_assert_eq!(scanned, heaped);
        }
    }
}
