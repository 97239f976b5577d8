//! The fonts of a document: the embedded ones, and those of `billing.fonts` for scripts that these lack.

use krilla::text::Font;
use rustybuzz::ttf_parser::{GlyphId, Permissions};
use std::fmt;
use std::path::Path;

const SERIF: &[u8] = include_bytes!("../../fonts/NotoSerif-Regular.ttf");
const SANS: &[u8] = include_bytes!("../../fonts/NotoSans-Regular.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../../fonts/NotoSans-SemiBold.ttf");
const ARABIC: &[u8] = include_bytes!("../../fonts/NotoSansArabic-Regular.ttf");
const HEBREW: &[u8] = include_bytes!("../../fonts/NotoSansHebrew-Regular.ttf");

/// Drawn for a missing glyph. Every embedded font for Latin has it.
pub const UNKNOWN: char = '\u{fffd}';

/// The fonts that documents are printed with. By default, the embedded ones: Latin, Greek, Cyrillic, Arabic and Hebrew.
#[derive(Clone, Default)]
pub struct PdfFonts {
    configured: Vec<&'static [u8]>,
}

impl PdfFonts {
    /// Reads more fonts. A character is printed with the first font that has it. Of a collection, the first font counts.
    pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Self, String> {
        let configured = paths.iter().map(|path| read(path.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { configured })
    }

    pub(super) fn serif() -> Result<FontFace, String> {
        FontFace::checked(SERIF)
    }

    pub(super) fn sans() -> Result<FontFace, String> {
        FontFace::checked(SANS)
    }

    pub(super) fn semibold() -> Result<FontFace, String> {
        FontFace::checked(SEMIBOLD)
    }

    /// The fonts for what the main font of a text lacks, in order.
    pub(super) fn fallbacks(&self) -> Result<Vec<FontFace>, String> {
        let configured = self.configured.iter().copied();
        [ARABIC, HEBREW].into_iter().chain(configured).map(FontFace::checked).collect()
    }
}

impl fmt::Debug for PdfFonts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PdfFonts({} configured)", self.configured.len())
    }
}

fn read(path: &Path) -> Result<&'static [u8], String> {
    let shown = path.display();
    let data = std::fs::read(path).map_err(|error| format!("cannot read the font {shown}: {error}"))?;
    // Shapers borrow from the data. It is read once and needed until the process ends.
    let data: &'static [u8] = data.leak();
    let Some(face) = FontFace::load(data) else {
        return Err(format!("{shown} is not a font; use a TrueType or OpenType file (.ttf, .otf, .ttc)"));
    };
    match face.shapes.permissions() {
        Some(Permissions::Restricted) => {
            Err(format!("the font {shown} may not be embedded in documents; use another font"))
        }
        _ => Ok(data),
    }
}

/// One font, for measuring and drawing.
pub struct FontFace {
    pub font: Font,
    pub shapes: rustybuzz::Face<'static>,
    /// The glyph that replaces a missing one.
    pub unknown: u32,
}

impl FontFace {
    /// For a font that was checked: an embedded one, or one that `PdfFonts::read` has accepted.
    fn checked(data: &'static [u8]) -> Result<Self, String> {
        Self::load(data).ok_or_else(|| "a font is not readable".to_owned())
    }

    fn load(data: &'static [u8]) -> Option<Self> {
        let font = Font::new(data.into(), 0)?;
        let shapes = rustybuzz::Face::from_slice(data, 0)?;
        let unknown = shapes.glyph_index(UNKNOWN).or_else(|| shapes.glyph_index(' '))?;
        Some(Self { font, shapes, unknown: u32::from(unknown.0) })
    }

    pub fn has(&self, c: char) -> bool {
        self.shapes.glyph_index(c).is_some_and(|id| id.0 != 0)
    }

    /// In font units.
    pub fn advance_of_unknown(&self) -> i32 {
        let id = GlyphId(u16::try_from(self.unknown).unwrap_or_default());
        self.shapes.glyph_hor_advance(id).map_or(0, i32::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_no_font_is_rejected_with_its_path() {
        let missing = PdfFonts::read(&["/nowhere/NotoSansCJK-Regular.ttc"]).unwrap_err();
        assert!(missing.starts_with("cannot read the font /nowhere/NotoSansCJK-Regular.ttc: "), "{missing}");
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let other = PdfFonts::read(&[own]).unwrap_err();
        assert!(other.contains("is not a font") && other.contains("Cargo.toml"), "{other}");
    }
}
