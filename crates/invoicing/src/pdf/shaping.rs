//! Turns a line of text into positioned glyphs:
//!
//! 1. The bidirectional algorithm (UAX #9) splits it into runs of one direction and gives their order from left to right.
//! 2. Each run is split where the font changes: a character is drawn with the first font that has it.
//! 3. The shaper selects and joins the glyphs of each part.
//!
//! Parts are returned in the order of the text, each with its position, so that programs read them in that order.

use super::characters::{is_mark, is_shaping_control};
use super::fonts::FontFace;
use krilla::text::{GlyphId, KrillaGlyph};
use rustybuzz::{BufferFlags, Direction, UnicodeBuffer};
use std::ops::Range;
use unicode_bidi::{Level, ParagraphBidiInfo, get_base_direction};

/// Glyphs of one font and one direction, from left to right.
#[derive(Clone, Debug)]
pub struct GlyphRun {
    /// Index of the font within the typeface.
    pub font: usize,
    pub glyphs: Vec<KrillaGlyph>,
    /// Distance from the left end of the line, in em.
    pub offset_em: f32,
}

/// Direction of a paragraph: that of its first letter.
pub fn base_level(text: &str) -> Level {
    match get_base_direction(text) {
        unicode_bidi::Direction::Rtl => Level::rtl(),
        unicode_bidi::Direction::Ltr | unicode_bidi::Direction::Mixed => Level::ltr(),
    }
}

/// Whether a part of the line runs from right to left.
pub fn has_right_to_left(text: &str, base: Level) -> bool {
    base.is_rtl() || ParagraphBidiInfo::new(text, Some(base)).has_rtl()
}

/// Returns the runs of the line, and its width in em. The first font is the main one.
pub fn shape_line(fonts: &[&FontFace], text: &str, base: Level) -> (Vec<GlyphRun>, f32) {
    if text.is_empty() {
        return (Vec::new(), 0.0);
    }
    let mut runs = Vec::new();
    let mut offset_em = 0.0;
    let bidi = ParagraphBidiInfo::new(text, Some(base));
    let (levels, from_left) = bidi.visual_runs(0..text.len());
    for range in from_left {
        let is_rtl = levels[range.start].is_rtl();
        let mut parts = split_by_font(fonts, text, range);
        if is_rtl {
            parts.reverse();
        }
        for (range, font) in parts {
            let start = range.start;
            let glyphs = shape(fonts[font], text, range, is_rtl);
            let width_em: f32 = glyphs.iter().map(|glyph| glyph.x_advance).sum();
            runs.push((start, GlyphRun { font, glyphs, offset_em }));
            offset_em += width_em;
        }
    }
    runs.sort_by_key(|(start, _)| *start);
    (runs.into_iter().map(|(_, run)| run).collect(), offset_em)
}

fn split_by_font(fonts: &[&FontFace], text: &str, range: Range<usize>) -> Vec<(Range<usize>, usize)> {
    let mut parts: Vec<(Range<usize>, usize)> = Vec::new();
    let first = range.start;
    for (offset, c) in text[range].char_indices() {
        let (start, end) = (first + offset, first + offset + c.len_utf8());
        let previous = parts.last().map(|(_, font)| *font);
        let font = font_of(fonts, c, previous);
        match parts.last_mut() {
            Some((range, same)) if *same == font => range.end = end,
            _ => parts.push((start..end, font)),
        }
    }
    parts
}

/// A mark stays with its letter, and an invisible character changes no font.
fn font_of(fonts: &[&FontFace], c: char, previous: Option<usize>) -> usize {
    match previous {
        Some(previous) if is_shaping_control(c) || is_mark(c) && fonts[previous].has(c) => previous,
        _ => fonts.iter().position(|font| font.has(c)).unwrap_or(0),
    }
}

fn shape(face: &FontFace, line: &str, range: Range<usize>, is_rtl: bool) -> Vec<KrillaGlyph> {
    let first = range.start;
    let text = &line[range];
    let mut buffer = UnicodeBuffer::new();
    buffer.push_str(text);
    buffer.guess_segment_properties();
    buffer.set_direction(if is_rtl { Direction::RightToLeft } else { Direction::LeftToRight });
    buffer.set_flags(BufferFlags::REMOVE_DEFAULT_IGNORABLES);
    let shaped = rustybuzz::shape(&face.shapes, &[], buffer);
    let (infos, positions) = (shaped.glyph_infos(), shaped.glyph_positions());
    let mut starts: Vec<usize> = infos.iter().map(|info| info.cluster as usize).collect();
    starts.sort_unstable();
    let per_em = face.font.units_per_em();
    let em = |units: i32| units as f32 / per_em;
    let glyph = |(info, position): (&rustybuzz::GlyphInfo, &rustybuzz::GlyphPosition)| {
        let start = info.cluster as usize;
        let next = starts.partition_point(|other| *other <= start);
        let end = starts.get(next).copied().unwrap_or(text.len());
        let is_unknown = info.glyph_id == 0;
        let id = if is_unknown { face.unknown } else { info.glyph_id };
        let advance = if is_unknown { face.advance_of_unknown() } else { position.x_advance };
        KrillaGlyph::new(
            GlyphId::new(id),
            em(advance),
            em(position.x_offset),
            em(position.y_offset),
            em(position.y_advance),
            first + start..first + end,
            None,
        )
    };
    infos.iter().zip(positions).map(glyph).collect()
}
