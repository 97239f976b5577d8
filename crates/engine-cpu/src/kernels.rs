//! The arithmetic. Products have a kernel for each instruction set; all else is written once over sixteen `Lanes` and
//! compiled for AVX-512, AVX2, NEON and any machine. Which one runs is found out when the engine starts. Every row's
//! result is reduced in one fixed order that does not depend on the other rows, so a request's text is the same alone
//! and in a full batch.

#![expect(unsafe_code, reason = "vector instructions, and threads that write disjoint parts of one buffer")]

mod attention;
mod elementwise;
mod heads;
mod inputs;
mod key_values;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pool;
mod product;
mod sampling;
mod tiles;
mod weight_memory;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use attention::{AttentionShape, MAX_HEAD_LEN, Span};
pub use elementwise::Rows;
pub use heads::{HeadRules, Positions, Turns};
pub use inputs::Inputs;
pub use key_values::{KvCache, KvShape};
pub use product::{Before, Matrix, padded};
pub use sampling::{BLOCK_TOKENS, LogitRows, Survey};
pub use tiles::{ColumnSource, laid_out_bytes};

use crate::error::LoadError;
use inputs::InputForm;
use lanes::Portable;
use pool::Pool;
#[cfg(target_arch = "x86_64")]
use product::amx::Amx;
use weight_memory::WeightMemory;

/// Forces a kernel by its name, for tests and for comparing them.
pub const KERNEL_VARIABLE: &str = "CHANCERY_KERNEL";
/// From the best to the plainest.
const NAMES: [&str; 6] = ["amx", "avx512", "avx2", "dotprod", "neon", "portable"];

/// The widest instructions that this machine has and the kernels use.
#[derive(Clone, Copy, Debug)]
enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "aarch64")]
    Dotprod(neon::Dotprod),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    Portable(Portable),
}

impl InstructionSet {
    /// The set of that name, if this machine has it.
    fn named(name: &str) -> Option<Self> {
        match name {
            #[cfg(target_arch = "x86_64")]
            "amx" => Amx::detect().map(Self::Amx),
            #[cfg(target_arch = "x86_64")]
            "avx512" => x86::Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            "avx2" => x86::Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "aarch64")]
            "dotprod" => neon::Dotprod::detect().map(Self::Dotprod),
            #[cfg(target_arch = "aarch64")]
            "neon" => neon::Neon::detect().map(Self::Neon),
            "portable" => Some(Self::Portable(Portable)),
            _ => None,
        }
    }

    fn detect() -> Self {
        NAMES.into_iter().find_map(Self::named).unwrap_or(Self::Portable(Portable))
    }

    /// Everything this machine can run, the portable one first, for tests that hold one against the other.
    #[cfg(test)]
    fn available() -> Vec<Self> {
        NAMES.into_iter().rev().filter_map(Self::named).collect()
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => "amx",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod(_) => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Portable(_) => "portable",
        }
    }

    fn input_form(self) -> InputForm {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) | Self::Avx512(_) => InputForm::Bytes,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => InputForm::Words,
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod(_) => InputForm::Bytes,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => InputForm::Words,
            Self::Portable(_) => InputForm::Words,
        }
    }
}

/// Runs `$body(lanes, $arguments)`, compiled for the instruction set that was found.
macro_rules! dispatch {
    ($set:expr, $body:path, $arguments:expr, $kind:ty) => {
        match $set {
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::InstructionSet::Avx512(lanes)
            | $crate::kernels::InstructionSet::Amx($crate::kernels::product::amx::Amx { lanes }) => {
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
            // NEON is part of every program for this architecture, so there is nothing to compile it for.
            #[cfg(target_arch = "aarch64")]
            $crate::kernels::InstructionSet::Neon(lanes)
            | $crate::kernels::InstructionSet::Dotprod($crate::kernels::neon::Dotprod { lanes }) => {
                $body(lanes, $arguments)
            }
            $crate::kernels::InstructionSet::Portable(lanes) => $body(lanes, $arguments),
        }
    };
}
use dispatch;

/// How products are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Int8 weights and 16-bit activations: what serves requests.
    Fixed,
    /// The file's weights and f32 activations: what the other is measured against.
    Exact,
}

/// The kernels and the threads they run on.
#[derive(Debug)]
pub struct Kernels {
    set: InstructionSet,
    arithmetic: Arithmetic,
    pool: Pool,
    weights: WeightMemory,
}

impl Kernels {
    /// The best kernel, or the one that the environment names. `threads` counts the calling thread; the others are
    /// started here.
    pub fn start(threads: usize) -> Result<Self, LoadError> {
        let asked = std::env::var_os(KERNEL_VARIABLE).map(|name| name.to_string_lossy().into_owned());
        Self::start_with(threads, asked.as_deref(), Arithmetic::Fixed)
    }

    pub fn start_with(threads: usize, name: Option<&str>, arithmetic: Arithmetic) -> Result<Self, LoadError> {
        let set = match name {
            None => InstructionSet::detect(),
            Some(name) => InstructionSet::named(name).ok_or_else(|| LoadError::Kernel {
                asked: name.to_owned(),
                reason: if NAMES.contains(&name) {
                    "this machine cannot run it".to_owned()
                } else {
                    format!("it is none of {}", NAMES.join(", "))
                },
            })?,
        };
        let pool = Pool::start(threads).map_err(LoadError::Threads)?;
        Ok(Self::new(set, arithmetic, pool))
    }

    fn new(set: InstructionSet, arithmetic: Arithmetic, pool: Pool) -> Self {
        Self { set, arithmetic, pool, weights: WeightMemory::default() }
    }

    pub fn name(&self) -> &'static str {
        self.set.name()
    }

    /// Rows up to which one more costs a step little beside reading the weights. docs/engine.md has what each costs.
    pub fn free_rows(&self) -> usize {
        match self.set {
            // The rows of a tile.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Amx(_) => 16,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512(_) => 8,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2(_) => 4,
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Dotprod(_) => 4,
            // It multiplies row by row.
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon(_) => 1,
            InstructionSet::Portable(_) => 1,
        }
    }

    /// The kernels that this machine can run, for tests that hold one against the other.
    #[cfg(test)]
    pub fn available_names() -> impl Iterator<Item = &'static str> {
        InstructionSet::available().into_iter().map(InstructionSet::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_chosen_by_name_or_refused_by_it() {
        for set in InstructionSet::available() {
            let kernels = Kernels::start_with(1, Some(set.name()), Arithmetic::Fixed).unwrap();
            assert_eq!(kernels.name(), set.name());
        }
        let error = Kernels::start_with(1, Some("sse9"), Arithmetic::Fixed).unwrap_err().to_string();
        assert!(error.contains("`sse9`") && error.contains(&NAMES.join(", ")), "{error}");
    }
}
