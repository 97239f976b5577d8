//! What pages say about text that the fonts of a PDF cannot print.

use chancery_invoicing::UnprintableText;

pub(crate) const UNPRINTABLE_ADVICE: &str =
    "Change the text, or ask your administrator to add a font for it (billing.fonts).";

/// `The billing address contains characters that cannot be printed: 東 (U+6771).`
pub(crate) fn unprintable_sentence(texts: &[UnprintableText]) -> String {
    let sentence = |text: &UnprintableText| {
        format!("{} contains characters that cannot be printed: {}.", text.field, text.named_characters())
    };
    texts.iter().map(sentence).collect::<Vec<_>>().join(" ")
}
