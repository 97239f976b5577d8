//! Where weights lie: one after the other in a few large pieces of memory, which the system is asked to map with huge
//! pages. A step reads all of it once, and small pages cost a look-up every 4,096 bytes.

use super::tiles::Line;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const HUGE_PAGE_BYTES: usize = 1 << 21;
/// Lines of a piece, unless one matrix alone has more.
const PIECE_LINES: usize = (32 << 20) / size_of::<Line>();

/// Hands out lines of the piece at hand, and takes a new piece when that one is full.
#[derive(Debug, Default)]
pub(super) struct WeightMemory(Mutex<Option<(Arc<Piece>, usize)>>);

#[derive(Debug)]
struct Piece {
    start: NonNull<Line>,
    layout: Layout,
}

// SAFETY: it only owns memory; who may use which lines is the concern of `Lines`.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Piece {
    fn new(lines: usize) -> Self {
        let bytes = (lines * size_of::<Line>()).next_multiple_of(HUGE_PAGE_BYTES);
        let Ok(layout) = Layout::from_size_align(bytes, HUGE_PAGE_BYTES) else {
            handle_alloc_error(Layout::new::<Line>());
        };
        // SAFETY: the layout is not empty, for a piece has lines.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        ask_for_huge_pages(start, bytes);
        Self { start: start.cast(), layout }
    }

    fn lines(&self) -> usize {
        self.layout.size() / size_of::<Line>()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and the last `Lines` in it is gone.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the range was just allocated and is whole pages; the advice changes how it is mapped, not what it holds.
    let advised =
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::debug!(%error, "weights lie in small pages");
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

/// Lines that belong to one matrix.
#[derive(Debug)]
pub(super) struct Lines {
    start: NonNull<Line>,
    len: usize,
    _piece: Arc<Piece>,
}

// SAFETY: it has its lines to itself, like a box.
unsafe impl Send for Lines {}
// SAFETY: as above; shared, they are only read.
unsafe impl Sync for Lines {}

impl WeightMemory {
    /// So many lines, all zero.
    pub(super) fn take(&self, len: usize) -> Lines {
        let mut at_hand = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(piece, used): &(Arc<Piece>, usize)| len <= piece.lines() - used;
        let (piece, used) = match at_hand.take().filter(fits) {
            Some(piece) => piece,
            None => (Arc::new(Piece::new(len.max(PIECE_LINES))), 0),
        };
        // SAFETY: the lines from `used` on are within the piece and nobody's yet; they become this matrix's alone.
        let start = unsafe {
            let start = piece.start.add(used);
            start.write_bytes(0, len);
            start
        };
        *at_hand = Some((Arc::clone(&piece), used + len));
        Lines { start, len, _piece: piece }
    }
}

impl Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        // SAFETY: `take` gave these lines to nobody else and has written them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_have_lines_of_their_own_that_outlive_the_memory_they_came_from() {
        let memory = WeightMemory::default();
        let mut taken: Vec<Lines> =
            [3, 0, PIECE_LINES - 2, PIECE_LINES + 5, 7].map(|len| memory.take(len)).into();
        for (number, lines) in (1_u8..).zip(&mut taken) {
            assert!(lines.iter().all(|line| line.0 == [0; 64]));
            lines.fill(Line([number; 64]));
        }
        drop(memory);
        for (number, lines) in (1_u8..).zip(&taken) {
            assert!(lines.iter().all(|line| line.0 == [number; 64]));
        }
    }
}
