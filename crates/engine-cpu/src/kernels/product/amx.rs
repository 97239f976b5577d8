//! Products with AMX: sixteen rows by thirty-two columns by sixty-four inputs with four instructions. The weights of a
//! block are read once for the high and the low bytes, and from the cache for every further sixteen rows.

use super::super::inputs::BLOCK_ROWS;
use super::super::tiles::{Line, PAIR_LINES, TILE_LINES, TRAILER_LINES};
use super::super::x86::Avx512;
use super::{Strip, avx512};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// With fewer rows than this, AVX-512 alone is as fast: both wait for the weights.
const MIN_ROWS: usize = 5;
/// How far ahead of its use a line is asked for where a block is read once.
const PREFETCH_LINES: usize = 128;
/// Rows that stay in the cache while they are multiplied by one block after another.
const RESIDENT_ROWS: usize = 64;
/// Bytes from one row of a tile to the next.
const STRIDE: usize = size_of::<Line>();

/// Proof that the machine has AMX and that the system lets this process use it.
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

/// Whether the processor has int8 tiles and the system keeps them when it changes threads.
fn has_tiles() -> bool {
    const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const TILE_STATE: u32 = 1 << 17 | 1 << 18;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & AMX_TILE_AND_INT8 != AMX_TILE_AND_INT8 {
        return false;
    }
    let state: u32;
    // SAFETY: a machine with AVX-512 in use, which the caller has found, has `xgetbv`; it only reads.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") state, out("edx") _, options(nomem, nostack)) };
    state & TILE_STATE == TILE_STATE
}

/// Asks Linux, once for all threads, for the right to use tiles, which are large and so not given unasked.
#[cfg(target_os = "linux")]
fn permit_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let outcome: i64;
    // SAFETY: this call takes two numbers and changes only what the process may use.
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

pub(super) fn multiply(amx: Amx, strip: &Strip<'_>) {
    let rows = strip.inputs.rows();
    if rows < MIN_ROWS {
        avx512::multiply(amx.lanes, strip);
        return;
    }
    configure(amx);
    let passes = rows.min(RESIDENT_ROWS).div_ceil(BLOCK_ROWS);
    for first in (0..rows).step_by(RESIDENT_ROWS) {
        for block in strip.blocks.clone() {
            for first_row in (first..rows.min(first + RESIDENT_ROWS)).step_by(BLOCK_ROWS) {
                if rows - first_row < MIN_ROWS {
                    avx512::multiply_rows(amx.lanes, strip, block, first_row);
                } else {
                    // SAFETY: an `Amx` exists only where the machine has tiles, and they are configured above.
                    unsafe { multiply_rows(strip, block, first_row, passes) };
                }
            }
        }
    }
    release(amx);
}

/// Eight tiles of sixteen rows of 64 bytes, on this thread.
fn configure(_amx: Amx) {
    static CONFIGURATION: Line = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            bytes[16 + 2 * tile] = 64;
            bytes[48 + tile] = 16;
            tile += 1;
        }
        Line(bytes)
    };
    // SAFETY: an `Amx` proves that the machine has the instruction; it reads the 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly)) };
}

/// Leaves the thread without tiles, so that the system does not keep them when it changes threads.
fn release(_amx: Amx) {
    // SAFETY: an `Amx` proves that the machine has the instruction.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// One block of columns by the up to sixteen rows from `first_row` on. When a block is gone through several times, each
/// of the `passes` asks for its share of the next block, so that memory is never idle.
///
/// # Safety
/// The machine has AMX and AVX-512, and this thread's tiles are configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn multiply_rows(strip: &Strip<'_>, index: usize, first_row: usize, passes: usize) {
    let rows = strip.inputs.block(first_row);
    let block = strip.matrix.block(index);
    let grouping = block.grouping;
    assert!(block.lines.len() == grouping.block_lines());
    assert!(rows.lines.len() >= grouping.tiles * 2 * rows.rows + BLOCK_ROWS);
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
    for group in 0..grouping.groups() {
        // SAFETY: the tiles are configured; no memory is touched.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem));
        }
        for _ in grouping.group(group) {
            for _ in 0..lines_ahead {
                // A prefetch may name any address.
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                ahead = ahead.wrapping_add(1);
            }
            // SAFETY: the lengths asserted above are those of all groups and tiles. A tile of inputs is always read
            // with sixteen lines; where the block has fewer rows, those beyond are within the lines that follow it,
            // and what they give is not used. The accumulators are left alone between these blocks.
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
        let is_last = group + 1 == grouping.groups();
        for (row, sum) in sums.iter_mut().enumerate().take(rows.rows) {
            let totals = trailer.totals(results, row);
            // SAFETY: the group before has written the sum.
            let before = if group == 0 { [_mm512_setzero_ps(); 2] } else { unsafe { sum.assume_init() } };
            let after = [0, 1].map(|tile| _mm512_fmadd_ps(totals[tile], trailer.scales[tile], before[tile]));
            if !is_last {
                sum.write(after);
                continue;
            }
            for (tile, sum) in after.into_iter().enumerate() {
                let out = strip.place(first_row + row, index, tile);
                // SAFETY: the place has 16 columns that belong to this strip alone.
                unsafe { avx512::finish(sum, rows.scales[row], out, strip.target.before) };
            }
        }
    }
}

type Results = [[Line; BLOCK_ROWS]; 4];

/// What follows the tiles of a group, for both tiles of columns.
struct Trailer {
    scales: [__m512; 2],
    corrections: [__m512i; 2],
}

impl Trailer {
    /// # Safety
    /// The machine has AVX-512, and there are that many lines.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn read(lines: *const [Line; TRAILER_LINES]) -> Self {
        // SAFETY: the caller vouches for the lines, and a line is 64 bytes.
        let at = |line: usize| unsafe { _mm512_load_si512(lines.cast::<Line>().add(line).cast()) };
        Self { scales: [_mm512_castsi512_ps(at(0)), _mm512_castsi512_ps(at(1))], corrections: [at(2), at(3)] }
    }

    /// A group's sums of one row: whole numbers, for both tiles of columns.
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
