//! Products with AMX: 16 rows × 32 columns × 64 inputs in four instructions. Both tiles of weights are loaded once for
//! the high and the low bytes. `amx_pipeline` has the order of groups and blocks.

use super::super::activations::BLOCK_ROWS;
use super::super::tiles::{Line, PAIR_LINES};
use super::super::x86::Avx512;
use super::amx_pipeline::{self, InputTile, MIN_ROWS, Results, TileUnit};
use super::{MatmulTask, avx512};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Bytes from one row of a tile to the next.
const STRIDE: usize = size_of::<Line>();

/// Proof that the CPU has AMX and that the OS lets this process use it.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Amx {
    pub(in crate::kernels) lanes: Avx512,
}

impl Amx {
    pub(in crate::kernels) fn detect() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        let lanes = Avx512::detect()?;
        PERMITTED.get_or_init(|| has_tiles() && permit_tiles()).then_some(Self { lanes })
    }
}

/// Whether the CPU has int8 tiles and the OS saves them on context switches.
fn has_tiles() -> bool {
    const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const TILE_STATE: u32 = 1 << 17 | 1 << 18;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & AMX_TILE_AND_INT8 != AMX_TILE_AND_INT8 {
        return false;
    }
    let state: u32;
    // SAFETY: the caller has detected AVX-512 in use, so the CPU has `xgetbv`; it only reads.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") state, out("edx") _, options(nomem, nostack)) };
    state & TILE_STATE == TILE_STATE
}

/// Requests permission to use tiles from Linux, once for all threads: tile state is large, so it is not enabled by
/// default.
#[cfg(target_os = "linux")]
fn permit_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let outcome: i64;
    // SAFETY: this system call takes two numbers and changes only what the process may use.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => outcome, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    outcome == 0
}

#[cfg(not(target_os = "linux"))]
fn permit_tiles() -> bool {
    false
}

pub(super) fn multiply(amx: Amx, matmul_task: &MatmulTask<'_>) {
    if matmul_task.inputs.rows() < MIN_ROWS {
        avx512::multiply(amx.lanes, matmul_task);
        return;
    }
    // SAFETY: an `Amx` exists only if the CPU has AVX-512.
    unsafe { amx_pipeline::multiply_blocks(amx.lanes, ConfiguredTiles::new(amx), matmul_task) };
}

/// This thread's tiles while they are configured for 16 rows: results in the first four, then high and low bytes of
/// inputs, then the two tiles of weights.
struct ConfiguredTiles(Amx);

impl ConfiguredTiles {
    fn new(amx: Amx) -> Self {
        configure(amx, BLOCK_ROWS);
        Self(amx)
    }
}

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        release(self.0);
    }
}

impl TileUnit for ConfiguredTiles {
    #[inline(always)]
    fn load(&mut self, weights: &[Line; PAIR_LINES], highs: &InputTile, lows: &InputTile) {
        // SAFETY: the tiles are configured, and a reference covers what each load reads: 16 lines. Tiles keep their
        // contents, because only the methods of this trait touch them.
        unsafe {
            asm!(
                "tileloadd tmm6, [{weights} + {stride}]",
                "tileloadd tmm4, [{highs} + {stride}]",
                "tileloadd tmm7, [{weights} + {stride} + 1024]",
                "tileloadd tmm5, [{lows} + {stride}]",
                weights = in(reg) weights,
                highs = in(reg) highs,
                lows = in(reg) lows,
                stride = in(reg) STRIDE,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    #[inline(always)]
    fn multiply_add(&mut self) {
        // SAFETY: the tiles are configured; no memory is accessed.
        unsafe {
            asm!(
                "tdpbusd tmm0, tmm4, tmm6",
                "tdpbusd tmm1, tmm4, tmm7",
                "tdpbusd tmm2, tmm5, tmm6",
                "tdpbusd tmm3, tmm5, tmm7",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem),
            );
        }
    }

    #[inline(always)]
    fn store(&mut self, results: &mut MaybeUninit<Results>) {
        // SAFETY: each tile is 1,024 bytes, as long as a result; so all four are written.
        unsafe {
            asm!(
                "tilestored [{out} + {stride}], tmm0",
                "tilestored [{out} + {stride} + 1024], tmm1",
                "tilestored [{out} + {stride} + 2048], tmm2",
                "tilestored [{out} + {stride} + 3072], tmm3",
                out = in(reg) results.as_mut_ptr(),
                stride = in(reg) STRIDE,
                options(nostack),
            );
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        // SAFETY: the tiles are configured; no memory is accessed.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem));
        }
    }
}

/// Configures eight tiles of 64 bytes a row, for this thread: results and inputs with `rows` rows, weights with 16.
///
/// # Panics
/// If there are more than 16 rows.
pub(in crate::kernels) fn configure(_amx: Amx, rows: usize) {
    assert!((1..=BLOCK_ROWS).contains(&rows), "rows of a tile");
    let mut configuration = Line::ZERO;
    configuration.0[0] = 1;
    for tile in 0..8 {
        configuration.0[16 + 2 * tile] = 64;
        configuration.0[48 + tile] = if tile < 6 { rows as u8 } else { 16 };
    }
    // SAFETY: an `Amx` proves that the CPU has the instruction; it reads the 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
}

/// Clears this thread's tile state, so that the OS need not save it on context switches.
pub(in crate::kernels) fn release(_amx: Amx) {
    // SAFETY: an `Amx` proves that the CPU has the instruction.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}
