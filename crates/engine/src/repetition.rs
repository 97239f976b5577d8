//! Finds out whether a reply loops: exactly, or nearly, as small models do ("who is a contractor who has a client who is
//! …"). It knows nothing of words or tokens, only whether two items are equal.
//!
//! For every distance up to `MAX_PERIOD` it counts how many of the last items equal the item that far before. Two rules
//! follow from these counts:
//! 1. Exact loop: the last items have a period, over enough copies and enough items (`min_copies`, `MIN_LOOP_ITEMS`,
//!    `MIN_SENTENCE_LOOP_ITEMS`).
//! 2. Near loop: almost all n-grams of the last `WINDOW_ITEMS` items occurred shortly before (`MIN_REPEATED_NGRAMS`).
//!
//! Rows of a table or a form, similar lines of code and a refrain have something new every few items, which breaks the
//! period and several n-grams. A text quoted once more is no loop, however long it is.

/// Longest period of an exact loop. An item is compared with this many items before it.
const MAX_PERIOD: usize = 256;
/// Repeated items that make an exact loop, whatever they are. Longer than rules ("====="), dotted lines and runs of
/// zeros, even where each character is an item.
const MIN_LOOP_ITEMS: usize = 128;
/// Repeated items that make an exact loop if the repeated part reads like a sentence.
const MIN_SENTENCE_LOOP_ITEMS: usize = 64;
/// Different items that a repeated part has if it reads like a sentence or a clause ("who is a contractor who has a
/// client"): more than the row of an empty table.
const MIN_SENTENCE_ITEMS: usize = 6;

/// Items of an n-gram.
const NGRAM_ITEMS: usize = 5;
/// How far back an n-gram counts as repeated. Less than `MIN_REPEATED_NGRAMS`, so that quoting a text once, of any
/// length, is no near loop.
const MAX_NGRAM_DISTANCE: usize = 128;
/// Last items in which repeated n-grams are counted.
const WINDOW_ITEMS: usize = 192;
/// Nine of ten: prose has almost none, and one new item in each row of 40 leaves fewer.
const MIN_REPEATED_NGRAMS: usize = WINDOW_ITEMS * 9 / 10;

const _: () = assert!(MAX_NGRAM_DISTANCE < MIN_REPEATED_NGRAMS && MAX_NGRAM_DISTANCE <= MAX_PERIOD);
const _: () = assert!(NGRAM_ITEMS <= MAX_PERIOD && MIN_SENTENCE_LOOP_ITEMS < MIN_LOOP_ITEMS);

/// Copies beyond the first that make an exact loop: a few identical rows of a form are none, and long passages do not
/// recur at once even twice.
const fn min_copies(period: usize) -> usize {
    match period {
        0..=32 => 5,
        33..=64 => 3,
        _ => 2,
    }
}

/// Watches the items of one reply: tokens, or hashes of words where tokens are not known. The work per item is bounded
/// by `MAX_PERIOD` comparisons, and `MIN_SENTENCE_ITEMS` times as many when a loop is likely.
#[derive(Debug)]
pub struct RepetitionDetector {
    /// All buffers in one allocation: the last items as a ring, as many counts of repeated items, by distance, and for
    /// each item of the window whether the n-gram that it ends was repeated, as a ring.
    cells: Vec<u32>,
    /// Length of the first two parts.
    periods: usize,
    pushed: usize,
    /// Repeated n-grams in the window.
    repeated_ngrams: usize,
}

impl RepetitionDetector {
    /// For a reply of at most `max_items`; allocates once. If more items come, the longest periods may be missed.
    pub fn new(max_items: usize) -> Self {
        let periods = max_items.clamp(NGRAM_ITEMS, MAX_PERIOD);
        Self { cells: vec![0; 2 * periods + WINDOW_ITEMS], periods, pushed: 0, repeated_ngrams: 0 }
    }

    /// Takes the next item; returns whether the reply loops now.
    pub fn push(&mut self, item: u32) -> bool {
        let (history, rest) = self.cells.split_at_mut(self.periods);
        let (counts, window) = rest.split_at_mut(self.periods);
        let oldest = self.pushed % self.periods;
        // From the previous item back to the oldest.
        let slots = (0..oldest).rev().chain((oldest..self.periods).rev()).take(self.pushed);
        let mut is_loop = false;
        let mut sentence = None;
        let mut is_repeated_ngram = false;
        for ((period, slot), count) in (1_usize..).zip(slots).zip(counts) {
            *count = if history[slot] == item { count.saturating_add(1) } else { 0 };
            let repeated = *count as usize;
            is_repeated_ngram |= repeated >= NGRAM_ITEMS && period <= MAX_NGRAM_DISTANCE;
            if repeated >= min_copies(period) * period {
                is_loop |= repeated >= MIN_LOOP_ITEMS;
                if repeated >= MIN_SENTENCE_LOOP_ITEMS && sentence.is_none() {
                    sentence = Some(period);
                }
            }
        }
        history[oldest] = item;

        let in_window = &mut window[self.pushed % WINDOW_ITEMS];
        self.repeated_ngrams += usize::from(is_repeated_ngram);
        self.repeated_ngrams -= *in_window as usize;
        *in_window = u32::from(is_repeated_ngram);
        self.pushed += 1;

        is_loop
            || self.repeated_ngrams >= MIN_REPEATED_NGRAMS
            || sentence.is_some_and(|period| self.reads_like_a_sentence(period))
    }

    /// Whether the last `period` items are different enough for a sentence.
    fn reads_like_a_sentence(&self, period: usize) -> bool {
        let mut different = [0; MIN_SENTENCE_ITEMS];
        let mut found = 0;
        for back in 1..=period {
            let item = self.cells[(self.pushed - back) % self.periods];
            if !different[..found].contains(&item) {
                different[found] = item;
                found += 1;
                if found == MIN_SENTENCE_ITEMS {
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
