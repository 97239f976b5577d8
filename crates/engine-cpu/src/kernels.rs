//! The arithmetic. Each operation is written once over sixteen `Lanes` and compiled for AVX-512, AVX2 and any machine;
//! which one runs is found out when the engine starts. Every row's result is reduced in one fixed order that does not
//! depend on the other rows, so a request's text is the same alone and in a full batch.

#![expect(unsafe_code, reason = "vector instructions, and threads that write disjoint parts of one buffer")]

mod attention;
mod elementwise;
mod lanes;
mod matrix;
mod multiply;
mod pool;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use attention::{AttentionShape, MAX_HEAD_LEN, Span};
pub use elementwise::rotate_pairs;
pub use matrix::Matrix;
pub use multiply::{PackedRows, Product};

use lanes::{Lanes, Portable};
use pool::Pool;
use std::io;

/// The widest instructions that this machine has and the kernels use.
#[derive(Clone, Copy, Debug)]
enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    Portable(Portable),
}

impl InstructionSet {
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(lanes) = x86::Avx512::detect() {
                return Self::Avx512(lanes);
            }
            if let Some(lanes) = x86::Avx2::detect() {
                return Self::Avx2(lanes);
            }
        }
        Self::Portable(Portable)
    }

    /// Everything this machine can run, for tests that hold one against the other.
    #[cfg(test)]
    fn available() -> Vec<Self> {
        let mut sets = vec![Self::Portable(Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(x86::Avx2::detect().map(Self::Avx2));
            sets.extend(x86::Avx512::detect().map(Self::Avx512));
        }
        sets
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            Self::Portable(_) => "portable",
        }
    }

    /// Most rows that one pass over a weight multiplies.
    fn max_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => x86::Avx512::MAX_ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => x86::Avx2::MAX_ROWS,
            Self::Portable(_) => Portable::MAX_ROWS,
        }
    }
}

/// Runs `$body(lanes, $arguments)`, compiled for the instruction set that was found.
macro_rules! dispatch {
    ($set:expr, $body:path, $arguments:expr, $kind:ty) => {
        match $set {
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::InstructionSet::Avx512(lanes) => {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                fn compiled(lanes: $crate::kernels::x86::Avx512, arguments: $kind) {
                    $body(lanes, arguments)
                }
                // SAFETY: an `Avx512` exists only where the machine has these features.
                unsafe { compiled(lanes, $arguments) }
            }
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::InstructionSet::Avx2(lanes) => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled(lanes: $crate::kernels::x86::Avx2, arguments: $kind) {
                    $body(lanes, arguments)
                }
                // SAFETY: an `Avx2` exists only where the machine has these features.
                unsafe { compiled(lanes, $arguments) }
            }
            $crate::kernels::InstructionSet::Portable(lanes) => $body(lanes, $arguments),
        }
    };
}
use dispatch;

/// The kernels and the threads they run on.
#[derive(Debug)]
pub struct Kernels {
    set: InstructionSet,
    pool: Pool,
}

impl Kernels {
    /// `threads` counts the calling thread; the others are started here.
    pub fn start(threads: usize) -> io::Result<Self> {
        Ok(Self { set: InstructionSet::detect(), pool: Pool::start(threads)? })
    }

    pub fn name(&self) -> &'static str {
        self.set.name()
    }
}
