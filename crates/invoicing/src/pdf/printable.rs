//! Finds text of an invoice or a letter that the fonts cannot print. An issued document is final, and a sent letter is gone, so
//! such text is rejected before.

use super::fonts::PdfFonts;
use super::letter::LetterDocument;
use super::typeface::Typefaces;
use chancery_domain::{Invoice, InvoiceKind, LineItem};

/// At most this many characters of a text are named.
const MAX_NAMED_CHARS: usize = 8;

/// A text with characters that no font has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnprintableText {
    /// `The billing address`.
    pub field: &'static str,
    /// In the order of the text, each once.
    pub characters: Vec<char>,
}

impl UnprintableText {
    /// `東 (U+6771), 京 (U+4EAC)`.
    pub fn named_characters(&self) -> String {
        let named = self.characters.iter().take(MAX_NAMED_CHARS).map(|c| match c.is_control() {
            true => format!("U+{:04X}", u32::from(*c)),
            false => format!("{c} (U+{:04X})", u32::from(*c)),
        });
        let mut text = named.collect::<Vec<_>>().join(", ");
        let left = self.characters.len().saturating_sub(MAX_NAMED_CHARS);
        if left > 0 {
            text.push_str(&format!(" and {left} more"));
        }
        text
    }
}

/// One sentence for logs and the command line.
pub(super) fn describe_unprintable(texts: &[UnprintableText]) -> String {
    let named = texts.iter().map(|text| format!("{} contains {}", text.field, text.named_characters()));
    format!(
        "no font has these characters: {}; change the text, or add a font with them to billing.fonts",
        named.collect::<Vec<_>>().join("; ")
    )
}

/// The texts of the document with characters that neither the embedded nor the configured fonts have.
pub fn unprintable_text(invoice: &Invoice, fonts: &PdfFonts) -> Result<Vec<UnprintableText>, String> {
    unprintable(texts(invoice), fonts)
}

/// The same for a letter.
pub fn unprintable_letter_text(
    letter: &LetterDocument<'_>,
    fonts: &PdfFonts,
) -> Result<Vec<UnprintableText>, String> {
    let texts = [
        ("The title", letter.title),
        ("The text", letter.text),
        ("The client’s name or address", letter.recipient),
        ("The firm’s name", letter.firm_name),
        ("The letterhead", letter.letterhead),
    ];
    unprintable(texts.map(|(field, text)| (field, text.to_owned())).into(), fonts)
}

fn unprintable(texts: Vec<(&'static str, String)>, fonts: &PdfFonts) -> Result<Vec<UnprintableText>, String> {
    let faces = Typefaces::load(fonts)?;
    let unprintable_chars = |(field, text): (&'static str, String)| {
        let mut characters: Vec<char> = Vec::new();
        for c in text.chars().filter(|c| *c != '\n' && !faces.can_print(*c)) {
            if !characters.contains(&c) {
                characters.push(c);
            }
        }
        (!characters.is_empty()).then_some(UnprintableText { field, characters })
    };
    Ok(texts.into_iter().filter_map(unprintable_chars).collect())
}

/// Every text of the document that people wrote.
fn texts(invoice: &Invoice) -> Vec<(&'static str, String)> {
    let Invoice { kind, seller, buyer, bill, .. } = invoice;
    let reason = match kind {
        InvoiceKind::Invoice => String::new(),
        InvoiceKind::CreditNote { reason, .. } => reason.clone(),
    };
    let models = bill.lines.iter().filter_map(|line| match &line.item {
        LineItem::Tokens { model, .. } => Some(model.as_str()),
        LineItem::Part => None,
    });
    vec![
        ("The account name", buyer.name.to_string()),
        ("The billing address", buyer.address.as_str().to_owned()),
        ("The billing email", buyer.email.as_str().to_owned()),
        ("The reason", reason),
        ("A model name", models.collect()),
        ("The firm’s name", seller.name.clone()),
        ("The letterhead", seller.letterhead.clone()),
        ("The payment instructions", seller.payment.clone()),
        ("The tax name", bill.tax.as_ref().map(|tax| tax.name.clone()).unwrap_or_default()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use chancery_domain::PostalAddress;

    fn unprintable_address(address: &str) -> Vec<UnprintableText> {
        let mut invoice = samples::ordinary();
        invoice.buyer.address = PostalAddress::from_stored(address.to_owned());
        unprintable_text(&invoice, &PdfFonts::default()).unwrap()
    }

    #[test]
    fn characters_without_a_font_are_named_with_their_field() {
        let found = unprintable_address("丸の内 1-1\n東京丸");
        let [text] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(text.field, "The billing address");
        assert_eq!(text.characters, ['丸', 'の', '内', '東', '京']);
        assert!(text.named_characters().starts_with("丸 (U+4E38), の (U+306E)"), "{text:?}");
        let sentence = describe_unprintable(&found);
        assert!(sentence.contains("The billing address contains 丸"), "{sentence}");
        assert!(sentence.contains("billing.fonts"), "{sentence}");
        let long = UnprintableText { field: "The reason", characters: ('一'..='丐').collect() };
        assert!(long.named_characters().ends_with(" more"), "{}", long.named_characters());
    }

    #[test]
    fn scripts_of_the_embedded_fonts_can_be_printed() {
        for address in [
            "Rob Santangelo\n210 Pier Road",
            "شارع الملك فهد\nالرياض ١٢٢١١",
            "רחוב הרצל 12\nתל אביב",
            "Кутузовский проспект\u{200b}\tЁ",
        ] {
            assert!(unprintable_address(address).is_empty(), "{address}");
        }
    }

    #[test]
    fn control_characters_are_named_by_number() {
        let found = unprintable_address("Pier\u{1} Road");
        assert_eq!(found[0].named_characters(), "U+0001");
    }
}
