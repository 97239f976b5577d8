//! An allocator for a server with an engine. Small values come from an allocator that is fast across threads. Large
//! buffers, such as weights, KV caches and the memory of password hashes, come from the system's, which is told to return them to
//! the machine as soon as they are freed: the memory plan of the next model counts on it.
//!
//! A fast allocator may reserve far more addresses than it uses. Where addresses are limited, everything comes from the
//! system's.

#![expect(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

/// The smallest buffer that is large.
const LARGE_BYTES: usize = 1 << 20;

const UNDECIDED: u8 = 0;
const SMALL_ALLOCATOR: u8 = 1;
const SYSTEM_ONLY: u8 = 2;

#[derive(Debug)]
pub struct SplitAllocator<A> {
    small: A,
    may_use_small: fn() -> bool,
    choice: AtomicU8,
}

impl<A> SplitAllocator<A> {
    /// `may_use_small` is asked once, at the first allocation. It must not allocate.
    pub const fn new(small: A, may_use_small: fn() -> bool) -> Self {
        Self { small, may_use_small, choice: AtomicU8::new(UNDECIDED) }
    }

    /// The same answer for the same size, as long as the process runs: memory goes back to where it came from.
    #[inline]
    fn is_small(&self, bytes: usize) -> bool {
        let choice = match self.choice.load(Ordering::Relaxed) {
            UNDECIDED => self.decide(),
            choice => choice,
        };
        bytes < LARGE_BYTES && choice == SMALL_ALLOCATOR
    }

    #[cold]
    fn decide(&self) -> u8 {
        return_large_buffers();
        let choice = if (self.may_use_small)() { SMALL_ALLOCATOR } else { SYSTEM_ONLY };
        // Of two threads that decide at the same time, the first one does.
        let decided = self.choice.compare_exchange(UNDECIDED, choice, Ordering::Relaxed, Ordering::Relaxed);
        decided.map_or_else(|earlier| earlier, |_| choice)
    }
}

/// glibc returns a buffer at once only if it has a mapping of its own. By default it raises the size from which buffers have one to
/// the largest that was freed, up to 32 MiB, and keeps smaller ones for the thread that freed them. A password hash takes 19 MiB.
fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a number, and does not allocate. A number that is set is not raised any more.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES as libc::c_int);
    }
}

// SAFETY: memory of one size always comes from the same allocator and goes back to it, because `is_small` never changes
// its answer.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SplitAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.is_small(layout.size()) {
            // SAFETY: the caller keeps the same contract.
            true => unsafe { self.small.alloc(layout) },
            // SAFETY: the caller keeps the same contract.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.is_small(layout.size()) {
            // SAFETY: the caller keeps the same contract.
            true => unsafe { self.small.alloc_zeroed(layout) },
            // SAFETY: the caller keeps the same contract.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        match (self.is_small(layout.size()), self.is_small(new_size)) {
            // SAFETY: the caller keeps the same contract; `memory` came from this allocator.
            (true, true) => unsafe { self.small.realloc(memory, layout, new_size) },
            // SAFETY: the caller keeps the same contract; `memory` came from this allocator.
            (false, false) => unsafe { System.realloc(memory, layout, new_size) },
            _ => {
                // SAFETY: the caller guarantees that the new size, rounded up to the alignment, does not overflow.
                let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
                // SAFETY: the caller guarantees that the new size is not zero.
                let moved = unsafe { self.alloc(new_layout) };
                if !moved.is_null() {
                    // SAFETY: both have at least that many bytes, and are not the same memory.
                    unsafe { ptr::copy_nonoverlapping(memory, moved, layout.size().min(new_size)) };
                    // SAFETY: `memory` came from this allocator with this layout, and is not used any more.
                    unsafe { self.dealloc(memory, layout) };
                }
                moved
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match self.is_small(layout.size()) {
            // SAFETY: the caller keeps the same contract; `memory` came from this allocator.
            true => unsafe { self.small.dealloc(memory, layout) },
            // SAFETY: the caller keeps the same contract; `memory` came from this allocator.
            false => unsafe { System.dealloc(memory, layout) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts the bytes that it has given out.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    // SAFETY: every call is forwarded unchanged to the system's allocator. The other methods call these two.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            self.0.fetch_add(layout.size(), Ordering::Relaxed);
            // SAFETY: the caller keeps the same contract.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            self.0.fetch_sub(layout.size(), Ordering::Relaxed);
            // SAFETY: the caller keeps the same contract.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    fn small_bytes(allocator: &SplitAllocator<Counting>) -> usize {
        allocator.small.0.load(Ordering::Relaxed)
    }

    const SIZES: [usize; 7] =
        [1, 4096, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES, LARGE_BYTES + 1, LARGE_BYTES - 1];

    #[test]
    fn buffer_keeps_its_bytes_and_its_place_when_it_grows_and_shrinks() {
        let allocator = SplitAllocator::new(Counting::default(), || true);
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        // SAFETY: the layout is not empty.
        let mut memory = unsafe { allocator.alloc_zeroed(layout(SIZES[0])) };
        for sizes in SIZES.windows(2) {
            // SAFETY: the memory has the size before, and is written within it.
            unsafe { memory.write_bytes(7, sizes[0]) };
            // SAFETY: `memory` came from this allocator with this layout.
            memory = unsafe { allocator.realloc(memory, layout(sizes[0]), sizes[1]) };
            assert_eq!(memory.addr() % 64, 0);
            // SAFETY: that many bytes were written before, and fit.
            let bytes = unsafe { std::slice::from_raw_parts(memory, sizes[0].min(sizes[1])) };
            assert!(bytes.iter().all(|byte| *byte == 7), "{sizes:?}");
            let expected = if sizes[1] < LARGE_BYTES { sizes[1] } else { 0 };
            assert_eq!(small_bytes(&allocator), expected, "{sizes:?}");
        }
        // SAFETY: `memory` came from this allocator with this layout.
        unsafe { allocator.dealloc(memory, layout(SIZES[SIZES.len() - 1])) };
        assert_eq!(small_bytes(&allocator), 0);
    }

    /// Resident memory of this process.
    #[cfg(target_os = "linux")]
    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// In a process of its own, because other tests allocate too.
    #[test]
    #[cfg(target_os = "linux")]
    fn large_buffers_return_to_the_machine_when_freed_on_any_thread() {
        const ALONE: &str = "CHANCERY_TEST_ALONE";
        const NAME: &str = concat!(
            "split_allocator::tests::",
            "large_buffers_return_to_the_machine_when_freed_on_any_thread"
        );
        const THREADS: usize = 8;
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let output = alone.args(["--exact", NAME, "--nocapture"]).env(ALONE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let allocator = SplitAllocator::new(Counting::default(), || true);
        let layout = Layout::from_size_align(19 * LARGE_BYTES, 64).unwrap();
        let use_buffer = || {
            // SAFETY: the layout is not empty.
            let memory = unsafe { allocator.alloc(layout) };
            // SAFETY: the memory has that size, and came from this allocator with this layout.
            unsafe {
                memory.write_bytes(7, layout.size());
                allocator.dealloc(memory, layout);
            }
        };
        use_buffer();
        let (before, all_freed) = (resident_bytes(), std::sync::Barrier::new(THREADS + 1));
        let after = std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    use_buffer();
                    use_buffer();
                    all_freed.wait();
                    all_freed.wait();
                });
            }
            all_freed.wait();
            let after = resident_bytes();
            all_freed.wait();
            after
        });
        assert!(after < before + layout.size(), "{before} bytes before, {after} after");
    }

    #[test]
    fn small_allocator_is_not_used_where_it_may_not_be() {
        let allocator = SplitAllocator::new(Counting::default(), || false);
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: the layout is not empty.
        let memory = unsafe { allocator.alloc(layout) };
        assert_eq!(small_bytes(&allocator), 0);
        // SAFETY: `memory` came from this allocator with this layout.
        unsafe { allocator.dealloc(memory, layout) };
        assert_eq!(small_bytes(&allocator), 0);
    }
}
