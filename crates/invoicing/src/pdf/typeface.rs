//! The three typefaces of a document: measuring and line breaking. Each is a main font, with other fonts for scripts that it
//! lacks.
//!
//! A character that no font has is drawn as `�`. The original goes into the PDF as actual text, for copy, search and screen
//! readers. `printable` finds such characters before a document is issued.

use super::characters::{is_invisible, is_mark, is_shaping_control, replace_unprintable};
use super::fonts::{FontFace, PdfFonts, UNKNOWN};
use super::shaping::{GlyphRun, base_level, has_right_to_left, shape_line};
use krilla::text::Font;
use std::rc::Rc;
use unicode_bidi::Level;

/// A main font and its fallbacks.
pub struct Typeface {
    main: FontFace,
    fallbacks: Rc<[FontFace]>,
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
    /// The original text, if programs would not read it from the glyphs: it differs from the drawn text, or a part of it runs
    /// from right to left.
    pub source_text: Option<String>,
    /// In the order of the text.
    pub runs: Vec<GlyphRun>,
    /// In em, without a trailing space.
    pub width_em: f32,
}

impl Typefaces {
    pub fn load(fonts: &PdfFonts) -> Result<Self, String> {
        let fallbacks: Rc<[FontFace]> = fonts.fallbacks()?.into();
        let typeface = |main| Typeface { main, fallbacks: Rc::clone(&fallbacks) };
        Ok(Self {
            serif: typeface(PdfFonts::serif()?),
            sans: typeface(PdfFonts::sans()?),
            semibold: typeface(PdfFonts::semibold()?),
        })
    }

    /// Whether every typeface can print the character.
    pub fn can_print(&self, c: char) -> bool {
        [&self.serif, &self.sans, &self.semibold].iter().all(|face| face.can_print(c))
    }
}

impl Typeface {
    pub fn font(&self, index: usize) -> Font {
        self.fonts()[index].font.clone()
    }

    /// The main font first.
    fn fonts(&self) -> Vec<&FontFace> {
        std::iter::once(&self.main).chain(self.fallbacks.iter()).collect()
    }

    fn can_print(&self, c: char) -> bool {
        let is_replaced = c != UNKNOWN && replace_unprintable(c) == UNKNOWN;
        is_invisible(c) || !is_replaced && self.has(replace_unprintable(c))
    }

    fn has(&self, c: char) -> bool {
        self.main.has(c) || self.fallbacks.iter().any(|font| font.has(c))
    }

    /// Shapes the whole text as one line, however long.
    pub fn line(&self, text: &str) -> Line {
        self.line_of_paragraph(text, base_level(text))
    }

    /// Shapes a line of a paragraph with this direction.
    fn line_of_paragraph(&self, text: &str, base: Level) -> Line {
        let source_text: String = text.chars().map(replace_unprintable).collect();
        let visible = |c: char| match c {
            c if is_shaping_control(c) => Some(c),
            _ if is_invisible(c) => None,
            c if !self.has(c) => Some(UNKNOWN),
            c => Some(c),
        };
        let text: String = source_text.chars().filter_map(visible).collect();
        let fonts = self.fonts();
        let inked = text.trim_end_matches(' ');
        let (mut runs, width_em) = shape_line(&fonts, inked, base);
        // A line ends with its spaces, which do not count as width: to the right, or to the left.
        let (spaces, spaces_em) = shape_line(&fonts, &text[inked.len()..], Level::ltr());
        let start_em = if base.is_rtl() { -spaces_em } else { width_em };
        for mut run in spaces {
            run.offset_em += start_em;
            for glyph in &mut run.glyphs {
                glyph.text_range = glyph.text_range.start + inked.len()..glyph.text_range.end + inked.len();
            }
            runs.push(run);
        }
        let is_source = source_text == text && !has_right_to_left(&text, base);
        let source_text = (!is_source).then_some(source_text);
        Line { text, source_text, runs, width_em }
    }

    pub fn width(&self, text: &str, size: f32) -> f32 {
        self.line(text).width_em * size
    }

    /// Wraps the text to lines of at most this width. Lines end at a line break, else after a space or a punctuation mark at which
    /// names may break, else anywhere. The first letter of a paragraph decides its direction.
    pub fn wrapped(&self, text: &str, size: f32, width: f32) -> Vec<Line> {
        text.split('\n').flat_map(|line| self.wrapped_line(line.trim(), size, width)).collect()
    }

    fn wrapped_line(&self, text: &str, size: f32, width: f32) -> Vec<Line> {
        let base = base_level(text);
        let whole = self.line_of_paragraph(text, base);
        if whole.width_em * size <= width {
            return vec![whole];
        }
        let mut lines = Vec::new();
        let mut line = String::new();
        for piece in pieces(text) {
            let longer = format!("{line}{piece}");
            if self.line_of_paragraph(&longer, base).width_em * size <= width {
                line = longer;
                continue;
            }
            if !line.is_empty() {
                lines.push(self.line_of_paragraph(&line, base));
            }
            line = self.fill_lines(piece, (size, width), base, &mut lines);
        }
        if !line.is_empty() {
            lines.push(self.line_of_paragraph(&line, base));
        }
        lines
    }

    /// Fills lines with a piece that may be longer than one line, and returns the rest.
    fn fill_lines(
        &self,
        piece: &str,
        (size, width): (f32, f32),
        base: Level,
        lines: &mut Vec<Line>,
    ) -> String {
        let mut line = String::new();
        for c in piece.chars() {
            let longer = format!("{line}{c}");
            // A combining mark stays with its letter.
            let is_drawn_onto = is_mark(c) && self.has(c);
            let may_break = !line.is_empty() && !is_drawn_onto && !is_invisible(c);
            if may_break && self.line_of_paragraph(&longer, base).width_em * size > width {
                lines.push(self.line_of_paragraph(&line, base));
                line = c.to_string();
            } else {
                line = longer;
            }
        }
        line
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn typefaces() -> Typefaces {
        Typefaces::load(&PdfFonts::default()).unwrap()
    }

    /// Number of glyphs that stand for a missing one.
    fn unknown_glyphs(face: &Typeface, line: &Line) -> usize {
        let unknown = |run: &GlyphRun| {
            let unknown = face.fonts()[run.font].unknown;
            run.glyphs.iter().filter(|glyph| [0, unknown].contains(&glyph.glyph_id.to_u32())).count()
        };
        line.runs.iter().filter(|run| run.font == 0).map(unknown).sum()
    }

    /// The parts of the text from left to right, each with its font.
    fn from_left(line: &Line) -> Vec<(String, usize)> {
        let mut glyphs: Vec<(f32, &str, usize)> = Vec::new();
        for run in &line.runs {
            let mut x = run.offset_em;
            for glyph in &run.glyphs {
                glyphs.push((x, &line.text[glyph.text_range.clone()], run.font));
                x += glyph.x_advance;
            }
        }
        glyphs.sort_by(|a, b| a.0.total_cmp(&b.0));
        glyphs.into_iter().map(|(_, text, font)| (text.to_owned(), font)).collect()
    }

    fn visual(face: &Typeface, text: &str) -> String {
        from_left(&face.line(text)).into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn digits_have_equal_width() {
        let faces = typefaces();
        for face in [&faces.sans, &faces.semibold] {
            let zero = face.line("0").width_em;
            for digit in '1'..='9' {
                assert!((face.line(&digit.to_string()).width_em - zero).abs() < 1e-6, "{digit}");
            }
        }
    }

    #[test]
    fn embedded_scripts_have_glyphs_and_others_a_placeholder() {
        let faces = typefaces();
        for face in [&faces.serif, &faces.sans, &faces.semibold] {
            for text in [
                "Ærøskøbing Łódź Ťažká Nguyễn",
                "Ἀθῆναι Ελλάδα",
                "Київ Ўзбекистон Ђорђе",
                "€ £ ₴ ₽ ½ № “ ” – …",
                "شارع الملك فهد، الرياض ١٢٢١١",
                "تهران، خیابان ولی‌عصر",
                "רחוב הרצל 12, תל אביב",
                "שָׁלוֹם ₪",
            ] {
                let line = face.line(text);
                assert_eq!(unknown_glyphs(face, &line), 0, "{text}");
                let mut glyphs = line.runs.iter().flat_map(|run| &run.glyphs);
                assert!(glyphs.all(|glyph| glyph.glyph_id.to_u32() != 0), "{text} has .notdef");
                assert!(text.chars().all(|c| face.can_print(c)), "{text}");
            }
            assert_eq!(unknown_glyphs(face, &face.line("東京 שלום 🏦")), 3);
            assert!(!face.can_print('東') && !face.can_print('\u{e000}') && !face.can_print('\u{1}'));
        }
    }

    #[test]
    fn right_to_left_text_is_drawn_from_the_right() {
        let faces = typefaces();
        assert_eq!(visual(&faces.sans, "שלום"), "םולש");
        // Numbers and names in Latin script keep their direction within it, and brackets are mirrored by the shaper.
        assert_eq!(visual(&faces.sans, "רחוב הרצל 12"), "12 לצרה בוחר");
        assert_eq!(visual(&faces.sans, "12 Herzl, תל אביב"), "12 Herzl, ביבא לת");
        let line = faces.sans.line("שלום");
        assert_eq!(line.source_text.as_deref(), Some("שלום"), "copied text is in the order of the text");
    }

    #[test]
    fn arabic_letters_are_joined() {
        let faces = typefaces();
        let ids = |text: &str| -> Vec<u32> {
            let line = faces.sans.line(text);
            line.runs.iter().flat_map(|run| &run.glyphs).map(|glyph| glyph.glyph_id.to_u32()).collect()
        };
        let alone = ids("ب")[0];
        let joined = ids("ببب");
        assert_eq!(joined.len(), 3);
        assert!(joined.iter().all(|id| *id != alone), "initial, medial and final forms");
        // A zero-width non-joiner separates letters without a space.
        assert_ne!(ids("بب"), ids("ب\u{200c}ب"));
        assert_eq!(ids("ب\u{200c}ب"), [alone, alone]);
    }

    #[test]
    fn wrapped_lines_keep_the_direction_of_their_paragraph() {
        let faces = typefaces();
        let lines = faces.sans.wrapped("שלום Brightwater Claims Handling", 9.0, 60.0);
        assert!(lines.len() > 1);
        let last = lines.last().unwrap();
        assert!(last.source_text.is_some(), "its base direction is right-to-left");
        assert!(!last.text.contains('ש'));
    }

    #[test]
    fn trailing_space_takes_no_width_in_either_direction() {
        let faces = typefaces();
        for text in ["Claims", "שלום"] {
            let (without, with) = (faces.sans.line(text), faces.sans.line(&format!("{text} ")));
            assert!((without.width_em - with.width_em).abs() < 1e-6, "{text}");
            let first = |line: &Line| line.runs[0].offset_em;
            assert!((first(&without) - first(&with)).abs() < 1e-6, "{text}");
        }
    }

    proptest! {
        #[test]
        fn wrapping_keeps_all_characters_within_the_width(
            text in "(\\PC|[-a-z ]|[א-ת]|[ء-ي]){0,80}", width in 40.0_f32..200.0
        ) {
            let text = text.replace('\n', " ");
            let faces = typefaces();
            let lines = faces.sans.wrapped(&text, 9.0, width);
            for line in &lines {
                let letters = line.text.chars().filter(|c| !is_mark(*c) && !is_invisible(*c)).count();
                prop_assert!(line.width_em * 9.0 <= width + 0.01 || letters <= 1, "{:?}", line.text);
            }
            let together: String =
                lines.iter().map(|line| line.source_text.as_deref().unwrap_or(&line.text)).collect();
            prop_assert_eq!(together, text.trim().chars().map(replace_unprintable).collect::<String>());
        }
    }
}
