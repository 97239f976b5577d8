//! Which characters are drawn, and how they behave in a line.

use super::fonts::UNKNOWN;

/// Replaces what does not belong in a document for archiving: control, private-use and special characters.
pub fn replace_unprintable(c: char) -> char {
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
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{ffa0}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Invisible characters that shape the text around them: joiners, and marks of direction. Embeddings and overrides are not
/// among them: they could show a name in another order than it is stored in.
pub fn is_shaping_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200c}'..='\u{200f}')
}

/// Combining marks of the scripts that the embedded fonts have.
pub fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}'..='\u{5c2}'
        | '\u{5c4}'..='\u{5c5}' | '\u{5c7}' | '\u{610}'..='\u{61a}' | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6dc}'
        | '\u{6df}'..='\u{6e4}' | '\u{6e7}'..='\u{6e8}' | '\u{6ea}'..='\u{6ed}' | '\u{8d3}'..='\u{8e1}' | '\u{8e3}'..='\u{8ff}'
        | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20f0}' | '\u{fb1e}' | '\u{fe20}'..='\u{fe2f}')
}
