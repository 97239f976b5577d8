//! Allocates weights contiguously in a few large pieces, for which it requests huge pages. A step reads all weights
//! once, and small pages cost a TLB lookup every 4,096 bytes.

use super::tiles::Line;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const HUGE_PAGE_BYTES: usize = 1 << 21;
/// Lines of a piece, unless one matrix alone has more.
const ARENA_LINES: usize = (32 << 20) / size_of::<Line>();

/// Bump allocator: hands out lines of the current piece, and allocates another when it is full.
#[derive(Debug, Default)]
pub(super) struct WeightMemory(Mutex<Option<(Arc<Arena>, usize)>>);

#[derive(Debug)]
struct Arena {
    start: NonNull<Line>,
    layout: Layout,
}

// SAFETY: it only owns memory; `Lines` governs access to the lines.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    fn new(lines: usize) -> Self {
        let bytes = (lines * size_of::<Line>()).next_multiple_of(HUGE_PAGE_BYTES);
        let Ok(layout) = Layout::from_size_align(bytes, HUGE_PAGE_BYTES) else {
            handle_alloc_error(Layout::new::<Line>());
        };
        // SAFETY: the layout is not empty, because a piece has lines.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        advise_huge_pages(start, bytes);
        Self { start: start.cast(), layout }
    }

    fn lines(&self) -> usize {
        self.layout.size() / size_of::<Line>()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and the last `Lines` in it is gone.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the range was just allocated and is whole pages; the advice changes its mapping, not its contents.
    let advised =
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::debug!(%error, "huge pages unavailable for weights");
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

/// The lines of one matrix.
#[derive(Debug)]
pub(super) struct Lines {
    start: NonNull<Line>,
    len: usize,
    _arena: Arc<Arena>,
}

// SAFETY: it owns its lines exclusively, like a box.
unsafe impl Send for Lines {}
// SAFETY: as above; through shared references they are only read.
unsafe impl Sync for Lines {}

impl WeightMemory {
    /// Allocates zeroed lines.
    pub(super) fn allocate(&self, len: usize) -> Lines {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(arena, used): &(Arc<Arena>, usize)| len <= arena.lines() - used;
        let (arena, used) = match current.take().filter(fits) {
            Some(arena) => arena,
            None => (Arc::new(Arena::new(len.max(ARENA_LINES))), 0),
        };
        // SAFETY: the lines from `used` on are within the piece and unowned; they become this matrix's alone.
        let start = unsafe {
            let start = arena.start.add(used);
            start.write_bytes(0, len);
            start
        };
        *current = Some((Arc::clone(&arena), used + len));
        Lines { start, len, _arena: arena }
    }
}

impl Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        // SAFETY: `allocate` gave these lines to no one else and initialised them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_lines_are_disjoint_and_outlive_the_allocator() {
        let memory = WeightMemory::default();
        let mut allocations: Vec<Lines> =
            [3, 0, ARENA_LINES - 2, ARENA_LINES + 5, 7].map(|len| memory.allocate(len)).into();
        for (number, lines) in (1_u8..).zip(&mut allocations) {
            assert!(lines.iter().all(|line| line.0 == [0; 64]));
            lines.fill(Line([number; 64]));
        }
        drop(memory);
        for (number, lines) in (1_u8..).zip(&allocations) {
            assert!(lines.iter().all(|line| line.0 == [number; 64]));
        }
    }
}
