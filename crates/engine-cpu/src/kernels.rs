//! The arithmetic. Matrix products have a kernel for each instruction set, and attention one for those with integer
//! products; everything else is written once over sixteen `Lanes` and compiled for AVX-512, AVX2, NEON and portable
//! code. The kernel is chosen when the engine starts. Every row's result is reduced in one fixed order that does not
//! depend on the other rows, so a request's text is the same alone and in a full batch.

#![expect(unsafe_code, reason = "vector instructions, and threads that write disjoint parts of one buffer")]

mod activations;
mod attention;
mod bandwidth;
mod elementwise;
mod kv_cache;
mod lanes;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
mod nibbles;
mod pool;
mod qkv;
mod sampling;
mod tiles;
mod weight_memory;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activations::Activations;
pub use attention::{AttentionShape, MAX_HEAD_DIM, Span};
pub use elementwise::Rows;
use kv_cache::KvFormat;
pub use kv_cache::{KvCache, KvShape};
pub use matmul::{Matrix, OutputMode, padded};
pub use qkv::{Positions, QkvTransform, RopeFrequencies};
pub use sampling::{BLOCK_TOKENS, LogitRows, LogitStats};
pub use tiles::{ColumnSource, tiled_bytes};

use crate::error::LoadError;
use activations::ActivationLayout;
use lanes::Portable;
#[cfg(target_arch = "x86_64")]
use matmul::amx::Amx;
use pool::ThreadPool;
use weight_memory::WeightMemory;

/// Environment variable that forces a kernel by name, for tests and comparisons.
pub const KERNEL_ENV: &str = "CHANCERY_KERNEL";
/// In order of preference.
const NAMES: [&str; 6] = ["amx", "avx512", "avx2", "dotprod", "neon", "portable"];

/// The best instruction set that both this CPU and the kernels support.
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
    /// The set with this name, if this CPU supports it.
    fn from_name(name: &str) -> Option<Self> {
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
        NAMES.into_iter().find_map(Self::from_name).unwrap_or(Self::Portable(Portable))
    }

    /// All sets that this CPU supports, the portable one first, for tests that compare them.
    #[cfg(test)]
    fn available() -> Vec<Self> {
        NAMES.into_iter().rev().filter_map(Self::from_name).collect()
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

    fn activation_layout(self) -> ActivationLayout {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) | Self::Avx512(_) => ActivationLayout::SplitBytes,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => ActivationLayout::I16,
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod(_) => ActivationLayout::SplitBytes,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => ActivationLayout::I16,
            Self::Portable(_) => ActivationLayout::I16,
        }
    }

    /// Whether attention can read a cache in the `SplitBytes` format.
    fn has_integer_attention(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) | Self::Avx512(_) => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => false,
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod(_) | Self::Neon(_) => false,
            Self::Portable(_) => false,
        }
    }
}

/// Runs `$body(lanes, $arguments)`, compiled for the detected instruction set.
macro_rules! dispatch {
    ($set:expr, $body:path, $arguments:expr, $kind:ty) => {
        match $set {
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::InstructionSet::Avx512(lanes)
            | $crate::kernels::InstructionSet::Amx($crate::kernels::matmul::amx::Amx { lanes }) => {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                fn compiled(lanes: $crate::kernels::x86::Avx512, arguments: $kind) {
                    $body(lanes, arguments)
                }
                // SAFETY: an `Avx512` exists only if the CPU has these features.
                unsafe { compiled(lanes, $arguments) }
            }
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::InstructionSet::Avx2(lanes) => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled(lanes: $crate::kernels::x86::Avx2, arguments: $kind) {
                    $body(lanes, arguments)
                }
                // SAFETY: an `Avx2` exists only if the CPU has these features.
                unsafe { compiled(lanes, $arguments) }
            }
            // NEON is part of the baseline for this architecture, so no `target_feature` is needed.
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

/// The arithmetic of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Int8 weights and 16-bit activations, used to serve requests.
    Int8,
    /// The file's weights and f32 activations, the reference for accuracy measurements.
    F32,
}

/// The kernels and the threads they run on.
#[derive(Debug)]
pub struct Kernels {
    set: InstructionSet,
    precision: Precision,
    pool: ThreadPool,
    weights: WeightMemory,
}

impl Kernels {
    /// Starts the best kernel, or the one that the environment names. `threads` includes the calling thread; the others
    /// are started here.
    pub fn start(threads: usize) -> Result<Self, LoadError> {
        let requested = std::env::var_os(KERNEL_ENV).map(|name| name.to_string_lossy().into_owned());
        Self::start_with(threads, requested.as_deref(), Precision::Int8)
    }

    pub fn start_with(threads: usize, name: Option<&str>, precision: Precision) -> Result<Self, LoadError> {
        let set = match name {
            None => InstructionSet::detect(),
            Some(name) => InstructionSet::from_name(name).ok_or_else(|| LoadError::Kernel {
                requested: name.to_owned(),
                reason: if NAMES.contains(&name) {
                    "not supported by this CPU".to_owned()
                } else {
                    format!("use one of {}", NAMES.join(", "))
                },
            })?,
        };
        let pool = ThreadPool::start(threads).map_err(LoadError::Threads)?;
        Ok(Self::new(set, precision, pool))
    }

    fn new(set: InstructionSet, precision: Precision, pool: ThreadPool) -> Self {
        Self { set, precision, pool, weights: WeightMemory::default() }
    }

    pub fn name(&self) -> &'static str {
        self.set.name()
    }

    /// Creates a KV cache in the format that attention reads; `None` if the size overflows.
    pub fn kv_cache(&self, shape: KvShape, pages: usize) -> Option<KvCache> {
        let is_integer = self.set.has_integer_attention() && shape.fits_split_bytes();
        let format = if is_integer { KvFormat::SplitBytes } else { KvFormat::F16 };
        KvCache::new(shape, format, pages)
    }

    /// Rows up to which one more adds little to the cost of reading the weights. docs/engine.md has measurements.
    pub fn draft_rows(&self) -> usize {
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

    /// Names of the kernels that this CPU supports, for tests that compare them.
    #[cfg(test)]
    pub fn available_names() -> impl Iterator<Item = &'static str> {
        InstructionSet::available().into_iter().map(InstructionSet::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_selected_by_name_or_rejected() {
        for set in InstructionSet::available() {
            let kernels = Kernels::start_with(1, Some(set.name()), Precision::Int8).unwrap();
            assert_eq!(kernels.name(), set.name());
        }
        let error = Kernels::start_with(1, Some("sse9"), Precision::Int8).unwrap_err().to_string();
        assert!(error.contains("`sse9`") && error.contains(&NAMES.join(", ")), "{error}");
    }
}
