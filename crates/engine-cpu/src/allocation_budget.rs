//! A global allocator that bounds what one thread may allocate, and how deep its stack may be. An allocation cannot fail and be
//! recovered from in Rust: code that calls `String::push_str` expects memory or the end of the process, and a stack overflow
//! always ends it. So a thread that exceeds its budget is stopped in the middle of an allocation and never continues; whoever
//! waits for it reads the flag. The thread and what it has allocated, at most its budget, stay until the process ends.
//!
//! Every byte that is allocated counts, whether or not it is freed later. That also bounds the work. The stack is checked where
//! memory is allocated, which recursion over values does at every level.

#![expect(
    unsafe_code,
    reason = "`GlobalAlloc` is an unsafe trait, and the flag is reached through a pointer"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Stack that is left for what runs between two allocations.
const STACK_RESERVE_BYTES: usize = 1 << 20;

thread_local! {
    /// Bytes that this thread may still allocate; `None` without a budget.
    static REMAINING_BYTES: Cell<Option<usize>> = const { Cell::new(None) };
    static FREED_BYTES: Cell<usize> = const { Cell::new(0) };
    /// The stack grows down to this address.
    static LOWEST_STACK_ADDRESS: Cell<usize> = const { Cell::new(0) };
    /// Set when the thread is stopped. Not null while it has a budget.
    static STOP_FLAG: Cell<*const StopFlag> = const { Cell::new(ptr::null()) };
}

#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub memory_bytes: usize,
    /// The size of the thread's stack, of which little is used yet.
    pub stack_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    Memory,
    Stack,
}

/// Whether and why a thread was stopped.
#[derive(Debug, Default)]
pub struct StopFlag(AtomicU8);

impl StopFlag {
    const MEMORY: u8 = 1;
    const STACK: u8 = 2;

    pub fn reason(&self) -> Option<StopReason> {
        match self.0.load(Ordering::Acquire) {
            Self::MEMORY => Some(StopReason::Memory),
            Self::STACK => Some(StopReason::Stack),
            _ => None,
        }
    }

    fn set(&self, reason: StopReason) {
        let code = match reason {
            StopReason::Memory => Self::MEMORY,
            StopReason::Stack => Self::STACK,
        };
        self.0.store(code, Ordering::Release);
    }
}

/// An allocator with budgets. A program that loads models installs it with `#[global_allocator]`; without it, the memory of
/// chat templates is not bounded.
#[derive(Debug)]
pub struct BudgetedAllocator<A>(pub A);

/// Runs `work` with a budget, and returns its result and the bytes that it allocated and did not free. If it exceeds the
/// budget, `stop_flag` is set, and this never returns. `work` must not lock anything that other threads need.
pub fn with_budget<T>(budget: Budget, stop_flag: &StopFlag, work: impl FnOnce() -> T) -> (T, usize) {
    // Also when `work` panics.
    let _reset = ResetBudget;
    LOWEST_STACK_ADDRESS.set(stack_address().saturating_sub(budget.stack_bytes - STACK_RESERVE_BYTES));
    STOP_FLAG.set(stop_flag);
    FREED_BYTES.set(0);
    REMAINING_BYTES.set(Some(budget.memory_bytes));
    let result = work();
    let allocated_bytes = budget.memory_bytes - REMAINING_BYTES.get().unwrap_or(0);
    (result, allocated_bytes.saturating_sub(FREED_BYTES.get()))
}

struct ResetBudget;

impl Drop for ResetBudget {
    fn drop(&mut self) {
        REMAINING_BYTES.set(None);
        STOP_FLAG.set(ptr::null());
    }
}

/// An address in the caller's part of the stack.
#[inline(always)]
fn stack_address() -> usize {
    let marker = 0_u8;
    (&raw const marker).addr()
}

fn charge(bytes: usize) {
    // A thread that ends may allocate after its thread-local values are gone.
    let _ = REMAINING_BYTES.try_with(|remaining| {
        if let Some(before) = remaining.get() {
            match before.checked_sub(bytes) {
                Some(_) if stack_address() < LOWEST_STACK_ADDRESS.get() => stop(StopReason::Stack),
                Some(after) => remaining.set(Some(after)),
                None => stop(StopReason::Memory),
            }
        }
    });
}

fn credit(bytes: usize) {
    let _ = REMAINING_BYTES.try_with(|remaining| {
        if remaining.get().is_some() {
            FREED_BYTES.set(FREED_BYTES.get().saturating_add(bytes));
        }
    });
}

#[cold]
fn stop(reason: StopReason) -> ! {
    // SAFETY: the pointer comes from the reference in `with_budget`, which has not returned while the budget is set.
    let stop_flag = unsafe { &*STOP_FLAG.get() };
    stop_flag.set(reason);
    loop {
        std::thread::park();
    }
}

// SAFETY: every call is forwarded unchanged to the inner allocator; counting does not allocate.
unsafe impl<A: GlobalAlloc> GlobalAlloc for BudgetedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: the caller keeps the same contract.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The old memory may exist until it is copied.
        charge(new_size);
        credit(layout.size());
        // SAFETY: the caller keeps the same contract; `memory` came from the inner allocator.
        unsafe { self.0.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        credit(layout.size());
        // SAFETY: the caller keeps the same contract; `memory` came from the inner allocator.
        unsafe { self.0.dealloc(memory, layout) }
    }
}
