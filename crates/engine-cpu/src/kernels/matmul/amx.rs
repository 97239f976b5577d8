//! Products with AMX: 16 rows × 32 columns × 64 inputs in four instructions. A block's weights are loaded once for both
//! the high and the low bytes, and come from the CPU cache for every further 16 rows.

use super::super::activations::BLOCK_ROWS;
use super::super::tiles::{Line, PAIR_LINES, TILE_LINES, TRAILER_LINES};
use super::super::x86::Avx512;
use super::{MatmulTask, avx512};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// With fewer rows than this, AVX-512 alone is as fast: both wait for the weights.
const MIN_ROWS: usize = 5;
/// Prefetch distance if a block is read once.
const PREFETCH_LINES: usize = 128;
/// Rows that stay in the CPU cache while they are multiplied by one block after another.
const RESIDENT_ROWS: usize = 64;
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
    let rows = matmul_task.inputs.rows();
    if rows < MIN_ROWS {
        avx512::multiply(amx.lanes, matmul_task);
        return;
    }
    configure(amx, BLOCK_ROWS);
    let passes = rows.min(RESIDENT_ROWS).div_ceil(BLOCK_ROWS);
    for first in (0..rows).step_by(RESIDENT_ROWS) {
        for block in matmul_task.blocks.clone() {
            for first_row in (first..rows.min(first + RESIDENT_ROWS)).step_by(BLOCK_ROWS) {
                if rows - first_row < MIN_ROWS {
                    avx512::multiply_rows(amx.lanes, matmul_task, block, first_row);
                } else {
                    // SAFETY: an `Amx` exists only if the CPU has tiles, and they are configured above.
                    unsafe { multiply_rows(matmul_task, block, first_row, passes) };
                }
            }
        }
    }
    release(amx);
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

/// Multiplies one block of columns by up to 16 rows from `first_row` on. If a block is read several times, each of the
/// `passes` prefetches its share of the next block, so that memory is never idle.
///
/// # Safety
/// The CPU has AMX and AVX-512, and this thread's tiles are configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn multiply_rows(matmul_task: &MatmulTask<'_>, index: usize, first_row: usize, passes: usize) {
    let rows = matmul_task.inputs.block(first_row);
    let block = matmul_task.matrix.block(index);
    let tile_groups = block.tile_groups;
    assert!(block.lines.len() == tile_groups.block_lines());
    assert!(rows.lines.len() >= tile_groups.tiles * 2 * rows.rows + BLOCK_ROWS);
    let mut weights: *const Line = block.lines.as_ptr();
    let (mut ahead, lines_ahead) = match passes {
        1 => (weights.wrapping_add(PREFETCH_LINES), PAIR_LINES),
        _ if first_row >= RESIDENT_ROWS => (weights, 0),
        _ => {
            let part = block.lines.len() / passes * (first_row / BLOCK_ROWS);
            (weights.wrapping_add(block.lines.len() + part), PAIR_LINES / passes)
        }
    };
    let mut inputs: *const Line = rows.lines.as_ptr();
    // The four results: high bytes of both tiles of columns, then low bytes.
    let mut results = MaybeUninit::<Results>::uninit();
    let mut sums = [MaybeUninit::<[__m512; 2]>::uninit(); BLOCK_ROWS];
    for group in 0..tile_groups.groups() {
        // SAFETY: the tiles are configured; no memory is accessed.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem));
        }
        for _ in tile_groups.group(group) {
            for _ in 0..lines_ahead {
                // Any address may be prefetched.
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                ahead = ahead.wrapping_add(1);
            }
            // SAFETY: the lengths asserted above cover all groups and tiles. A tile of inputs is always read with 16
            // lines; if the block has fewer rows, the extra ones are within the lines that follow it, and their results
            // are not used. The accumulators are not touched between these asm blocks.
            unsafe {
                asm!(
                    "tileloadd tmm6, [{weights} + {stride}]",
                    "tileloadd tmm4, [{highs} + {stride}]",
                    "tileloadd tmm7, [{weights} + {stride} + 1024]",
                    "tileloadd tmm5, [{lows} + {stride}]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm7",
                    "tdpbusd tmm2, tmm5, tmm6",
                    "tdpbusd tmm3, tmm5, tmm7",
                    weights = in(reg) weights,
                    highs = in(reg) inputs,
                    lows = in(reg) inputs.add(rows.rows),
                    stride = in(reg) STRIDE,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
                weights = weights.add(PAIR_LINES);
                inputs = inputs.add(2 * rows.rows);
            }
        }
        // SAFETY: each tile is 1,024 bytes, as long as a result; so all four are written.
        let results = unsafe {
            asm!(
                "tilestored [{out} + {stride}], tmm0",
                "tilestored [{out} + {stride} + 1024], tmm1",
                "tilestored [{out} + {stride} + 2048], tmm2",
                "tilestored [{out} + {stride} + 3072], tmm3",
                out = in(reg) results.as_mut_ptr(),
                stride = in(reg) STRIDE,
                options(nostack),
            );
            results.assume_init_ref()
        };
        // SAFETY: the group's trailer follows its tiles, and the pointer ends at most one past the block's last line.
        let trailer = unsafe {
            let trailer = weights.cast();
            weights = weights.add(TRAILER_LINES);
            Trailer::read(trailer)
        };
        let is_last = group + 1 == tile_groups.groups();
        for (row, sum) in sums.iter_mut().enumerate().take(rows.rows) {
            let totals = trailer.totals(results, row);
            // SAFETY: the previous group has written the sum.
            let previous = if group == 0 { [_mm512_setzero_ps(); 2] } else { unsafe { sum.assume_init() } };
            let after =
                [0, 1].map(|tile| _mm512_fmadd_ps(totals[tile], trailer.scales[tile], previous[tile]));
            if !is_last {
                sum.write(after);
                continue;
            }
            for (tile, sum) in after.into_iter().enumerate() {
                let out = matmul_task.output_ptr(first_row + row, index, tile);
                // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
                unsafe { avx512::finish(sum, rows.scales[row], out, matmul_task.target.mode) };
            }
        }
    }
}

type Results = [[Line; BLOCK_ROWS]; 4];

/// The lines after a group's tiles, for both tiles of columns.
struct Trailer {
    scales: [__m512; 2],
    corrections: [__m512i; 2],
}

impl Trailer {
    /// # Safety
    /// The CPU has AVX-512, and `lines` is valid to read.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn read(lines: *const [Line; TRAILER_LINES]) -> Self {
        // SAFETY: the caller guarantees the lines, and a line is 64 bytes.
        let at = |line: usize| unsafe { _mm512_load_si512(lines.cast::<Line>().add(line).cast()) };
        Self { scales: [_mm512_castsi512_ps(at(0)), _mm512_castsi512_ps(at(1))], corrections: [at(2), at(3)] }
    }

    /// A group's integer sums of one row, for both tiles of columns.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn totals(&self, results: &Results, row: usize) -> [__m512; 2] {
        [0, 1].map(|tile| {
            // SAFETY: a line is 64 bytes.
            let read = |part: usize| unsafe { _mm512_load_si512((&raw const results[part][row]).cast()) };
            let (high, low) = (_mm512_slli_epi32::<8>(read(tile)), read(2 + tile));
            _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_add_epi32(high, low), self.corrections[tile]))
        })
    }
}

const _: () = assert!(TILE_LINES == BLOCK_ROWS && RESIDENT_ROWS.is_multiple_of(BLOCK_ROWS));
