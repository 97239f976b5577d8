//! The three fonts of a document: shaping, measuring and line breaking.
//!
//! A character that none of them has is drawn as `�`. The original goes into the PDF as actual text, for copy, search and screen
//! readers.

use krilla::text::{Font, GlyphId, KrillaGlyph};
use rustybuzz::{Direction, UnicodeBuffer};

const SERIF: &[u8] = include_bytes!("../../fonts/NotoSerif-Regular.ttf");
const SANS: &[u8] = include_bytes!("../../fonts/NotoSans-Regular.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../../fonts/NotoSans-SemiBold.ttf");

/// Drawn for a missing glyph. Every font here has it.
const UNKNOWN: char = '\u{fffd}';

/// One font, for measuring and drawing.
pub struct Typeface {
    pub font: Font,
    shapes: rustybuzz::Face<'static>,
    unknown: u32,
}

pub struct Typefaces {
    pub serif: Typeface,
    pub sans: Typeface,
    pub semibold: Typeface,
}

#[derive(Clone, Debug)]
pub struct Line {
    /// The text as drawn.
    pub text: String,
    /// The original text, if it differs from the drawn one.
    pub source_text: Option<String>,
    pub glyphs: Vec<KrillaGlyph>,
    /// In em, without a trailing space.
    pub width_em: f32,
}

impl Typefaces {
    pub fn load() -> Result<Self, String> {
        Ok(Self {
            serif: Typeface::load(SERIF)?,
            sans: Typeface::load(SANS)?,
            semibold: Typeface::load(SEMIBOLD)?,
        })
    }
}

impl Typeface {
    fn load(data: &'static [u8]) -> Result<Self, String> {
        let unusable = || "embedded font is not readable".to_owned();
        let font = Font::new(data.into(), 0).ok_or_else(unusable)?;
        let shapes = rustybuzz::Face::from_slice(data, 0).ok_or_else(unusable)?;
        let unknown = shapes.glyph_index(UNKNOWN).ok_or_else(unusable)?;
        Ok(Self { font, shapes, unknown: u32::from(unknown.0) })
    }

    /// Shapes the whole text as one line, however long.
    pub fn line(&self, text: &str) -> Line {
        let source_text: String = text.chars().map(replace_unprintable).collect();
        let visible = |c: char| match c {
            _ if is_invisible(c) => None,
            c if self.shapes.glyph_index(c).is_none() => Some(UNKNOWN),
            c => Some(c),
        };
        let text: String = source_text.chars().filter_map(visible).collect();
        let glyphs = self.glyphs(&text);
        let inked = text.trim_end_matches(' ').len();
        let width_em = glyphs.iter().filter(|g| g.text_range.start < inked).map(|g| g.x_advance).sum();
        let source_text = (source_text != text).then_some(source_text);
        Line { text, source_text, glyphs, width_em }
    }

    pub fn width(&self, text: &str, size: f32) -> f32 {
        self.line(text).width_em * size
    }

    /// Wraps the text to lines of at most this width. Lines end at a line break, else after a space or a punctuation mark at which
    /// names may break, else anywhere.
    pub fn wrapped(&self, text: &str, size: f32, width: f32) -> Vec<Line> {
        text.split('\n').flat_map(|line| self.wrapped_line(line.trim(), size, width)).collect()
    }

    fn wrapped_line(&self, text: &str, size: f32, width: f32) -> Vec<Line> {
        let whole = self.line(text);
        if whole.width_em * size <= width {
            return vec![whole];
        }
        let mut lines = Vec::new();
        let mut line = String::new();
        for piece in pieces(text) {
            let longer = format!("{line}{piece}");
            if self.width(&longer, size) <= width {
                line = longer;
                continue;
            }
            if !line.is_empty() {
                lines.push(self.line(&line));
            }
            line = self.fill_lines(piece, size, width, &mut lines);
        }
        if !line.is_empty() {
            lines.push(self.line(&line));
        }
        lines
    }

    /// Fills lines with a piece that may be longer than one line, and returns the rest.
    fn fill_lines(&self, piece: &str, size: f32, width: f32, lines: &mut Vec<Line>) -> String {
        let mut line = String::new();
        for c in piece.chars() {
            let longer = format!("{line}{c}");
            // A combining mark stays with its letter.
            let is_drawn_onto = is_mark(c) && self.shapes.glyph_index(c).is_some();
            let may_break = !line.is_empty() && !is_drawn_onto && !is_invisible(c);
            if may_break && self.width(&longer, size) > width {
                lines.push(self.line(&line));
                line = c.to_string();
            } else {
                line = longer;
            }
        }
        line
    }

    fn glyphs(&self, text: &str) -> Vec<KrillaGlyph> {
        let mut buffer = UnicodeBuffer::new();
        buffer.push_str(text);
        buffer.guess_segment_properties();
        // None of the fonts has a right-to-left script.
        buffer.set_direction(Direction::LeftToRight);
        let shaped = rustybuzz::shape(&self.shapes, &[], buffer);
        let (infos, positions) = (shaped.glyph_infos(), shaped.glyph_positions());
        let per_em = self.font.units_per_em();
        let em = |units: i32| units as f32 / per_em;
        let glyph = |(index, info): (usize, &rustybuzz::GlyphInfo)| {
            let position = positions[index];
            let start = info.cluster as usize;
            let next = infos[index..].iter().find(|other| other.cluster != info.cluster);
            let range = start..next.map_or(text.len(), |next| next.cluster as usize);
            let is_unknown = info.glyph_id == 0;
            let id = if is_unknown { self.unknown } else { info.glyph_id };
            let advance = match is_unknown {
                true => self.advance_of_unknown(),
                false => position.x_advance,
            };
            KrillaGlyph::new(
                GlyphId::new(id),
                em(advance),
                em(position.x_offset),
                em(position.y_offset),
                em(position.y_advance),
                range,
                None,
            )
        };
        infos.iter().enumerate().map(glyph).collect()
    }

    fn advance_of_unknown(&self) -> i32 {
        let id = rustybuzz::ttf_parser::GlyphId(u16::try_from(self.unknown).unwrap_or_default());
        self.shapes.glyph_hor_advance(id).map_or(0, i32::from)
    }
}

/// Splits a text where lines may break: after spaces, and after punctuation in names. A number with a hyphen stays whole.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut before = None;
    let mut chars = text.char_indices().peekable();
    while let Some((offset, c)) = chars.next() {
        let after = chars.peek().map(|(_, after)| *after);
        let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
        let may_end = match c {
            ' ' | '/' | '_' => true,
            '-' => !(is_digit(before) && is_digit(after)),
            _ => false,
        };
        if may_end {
            let end = offset + c.len_utf8();
            pieces.push(&text[start..end]);
            start = end;
        }
        before = Some(c);
    }
    pieces.push(&text[start..]);
    pieces
}

/// Replaces what does not belong in a document for archiving: control, private-use and special characters.
fn replace_unprintable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => UNKNOWN,
        '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}' => {
            UNKNOWN
        }
        c if u32::from(c) & 0xfffe == 0xfffe => UNKNOWN,
        c => c,
    }
}

/// Zero-width characters of Unicode: they are part of the text but not drawn.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{ffa0}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20f0}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_have_equal_width() {
        let faces = Typefaces::load().unwrap();
        for face in [&faces.sans, &faces.semibold] {
            let zero = face.line("0").width_em;
            for digit in '1'..='9' {
                assert!((face.line(&digit.to_string()).width_em - zero).abs() < 1e-6, "{digit}");
            }
        }
    }

    #[test]
    fn latin_greek_and_cyrillic_have_glyphs_and_other_scripts_a_placeholder() {
        let faces = Typefaces::load().unwrap();
        for face in [&faces.serif, &faces.sans, &faces.semibold] {
            for text in [
                "Ærøskøbing Łódź Ťažká Nguyễn",
                "Ἀθῆναι Ελλάδα",
                "Київ Ўзбекистон Ђорђе",
                "€ £ ₴ ₽ ½ № “ ” – …",
            ] {
                let line = face.line(text);
                assert!(line.glyphs.iter().all(|glyph| glyph.glyph_id.to_u32() != face.unknown), "{text}");
            }
            let unknown = face.line("東京 שלום 🏦");
            let marks = unknown.glyphs.iter().filter(|glyph| glyph.glyph_id.to_u32() == face.unknown).count();
            assert_eq!(marks, 7);
        }
    }

    proptest! {
        #[test]
        fn wrapping_keeps_all_characters_within_the_width(
            text in "(\\PC|[-a-z ]){0,80}", width in 40.0_f32..200.0
        ) {
            let text = text.replace('\n', " ");
            let faces = Typefaces::load().unwrap();
            let lines = faces.sans.wrapped(&text, 9.0, width);
            for line in &lines {
                let letters = line.text.chars().filter(|c| !is_mark(*c)).count();
                prop_assert!(line.width_em * 9.0 <= width + 0.01 || letters <= 1, "{:?}", line.text);
            }
            let together: String =
                lines.iter().map(|line| line.source_text.as_deref().unwrap_or(&line.text)).collect();
            prop_assert_eq!(together, text.trim().chars().map(replace_unprintable).collect::<String>());
        }
    }
}
