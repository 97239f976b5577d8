use super::content::Content;
use super::page_layout::{LEFT, PlacedText, RIGHT, paginate, placed};
use super::*;
use crate::samples;
use chancery_domain::{AccountName, CreditAmount, MinorUnits, PostalAddress};
use proptest::prelude::*;

/// The text of each page, in reading order.
fn pages(invoice: &Invoice) -> Vec<Vec<PlacedText>> {
    let faces = Typefaces::load(&PdfFonts::default()).unwrap();
    let Content { layout_rows, running, .. } = compose(invoice, &faces);
    paginate(layout_rows, &running.table_head).iter().map(placed).collect()
}

/// The whole text without line breaks and spaces, for names that wrap.
fn text(invoice: &Invoice) -> String {
    pages(invoice).into_iter().flatten().map(|text| text.text.replace(' ', "")).collect()
}

fn yen() -> Invoice {
    let usage = [samples::used("qwen2.5-7b", (45_000, 135_000), 182_640_275, 24_118_906)];
    samples::invoice(&usage, &samples::terms("JPY", Some("10")))
}

/// The longest possible address, with one letter per line.
fn tall() -> Invoice {
    let mut invoice = samples::long(30);
    invoice.buyer.address = PostalAddress::from_stored("x\n".repeat(250).trim().to_owned());
    invoice
}

fn part() -> Invoice {
    let reason = "The outage of 14 October, as agreed with Mr Santangelo on the telephone.";
    samples::credit(&samples::ordinary(), CreditAmount::Part(MinorUnits(5000)), reason)
}

fn all_samples() -> Vec<(&'static str, Invoice)> {
    let whole =
        samples::credit(&samples::ordinary(), CreditAmount::Full, "It was sent to the wrong address.");
    vec![
        ("ordinary", samples::ordinary()),
        ("cached-input", samples::with_cached_input()),
        ("eighty-lines", samples::long(80)),
        ("credit-whole", whole),
        ("credit-part", part()),
        ("hostile", samples::hostile()),
        ("largest", samples::largest()),
        ("yen", yen()),
        ("tall", tall()),
        ("nothing", samples::invoice(&[], &samples::terms("USD", None))),
    ]
}

/// `CHANCERY_SHOW_PDF=FOLDER` saves the files for inspection.
#[test]
fn every_sample_renders_as_accessible_deterministic_pdf_a() {
    for (name, invoice) in all_samples() {
        let bytes = pdf(&invoice).unwrap();
        assert!(bytes == pdf(&invoice).unwrap(), "{name}");
        if let Ok(folder) = std::env::var("CHANCERY_SHOW_PDF") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.pdf")), &bytes).unwrap();
        }
        let plain = String::from_utf8_lossy(&bytes);
        let has = |text: &str| assert!(plain.contains(text), "{name} has no {text}");
        has("%PDF-1.7");
        has("<pdfaid:part>2</pdfaid:part>");
        has("<pdfuaid:part>1</pdfuaid:part>");
        has("2026-11-0");
        has(&format!("/Count {}", pages(&invoice).len()));
    }
}

#[test]
fn no_text_is_cut_off_or_overlaps() {
    for (name, invoice) in all_samples() {
        for page in pages(&invoice) {
            for (index, text) in page.iter().enumerate() {
                let PlacedText { left, right, top, bottom, .. } = *text;
                assert!(left >= LEFT - 0.1 && right <= RIGHT + 0.1, "{name}: {text:?} is off the page");
                assert!(top >= 50.0 && bottom <= 780.0, "{name}: {text:?} is off the page");
                for other in &page[..index] {
                    let apart = right <= other.left + 0.1
                        || left >= other.right - 0.1
                        || bottom <= other.top + 0.1
                        || top >= other.bottom - 0.1;
                    assert!(apart, "{name}: {text:?} is over {other:?}");
                }
            }
        }
    }
}

#[test]
fn invoice_has_all_required_fields() {
    let text = text(&samples::ordinary());
    for expected in [
        "Marlow&Finch",
        "48CommercialWharf",
        "Boston,MA02110",
        "Invoice2026-0031",
        "2November2026",
        "BrightwaterClaims",
        "RobSantangelo",
        "Salem,MA01970",
        "accounts@brightwater.example",
        "Textgeneration,October2026(UTC)",
        "2December2026",
        "Amountdue$207.70",
        "Amount,USD",
        "qwen2.5-7b,input182,640,2750.3054.792082554.79",
        "Subtotal195.48",
        "Salestax,6.25%12.22",
        "Total$207.70",
        "account000123456.",
        "Pleasequote2026-0031.",
        "roundedtothenearestcent,withhalvesroundedtoeven.",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn credit_note_has_invoice_number_reason_and_negative_amounts() {
    let text = text(&part());
    for expected in [
        "Creditnote2026-0032",
        "CreditsInvoice2026-0031",
        "Reasonforthecreditoninvoice2026-0031:Theoutageof14October",
        "Partofinvoice2026-0031-50.00-50.00",
        "Salestax,6.25%-3.12",
        "Total-$53.12",
        "Amountcredited-$53.12",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert!(!text.contains("Payment"), "nobody pays a credit note");
}

#[test]
fn pdf_omits_payment_paragraph_if_none_is_configured() {
    let mut invoice = samples::ordinary();
    invoice.seller.payment = String::new();
    let text = text(&invoice);
    assert!(text.contains("Calculation"), "{text}");
    assert!(!text.contains("Payment") && !text.contains("quote"), "{text}");
}

#[test]
fn cached_input_is_named_on_its_line() {
    let text = text(&samples::with_cached_input());
    assert!(text.contains("qwen2.5-7b,cachedinput"), "{text}");
}

#[test]
fn table_header_repeats_on_every_page_and_totals_never_stand_alone() {
    let pages = pages(&samples::long(80));
    assert_eq!(pages.len(), 4);
    for page in &pages {
        let has = |text: &str| page.iter().any(|placed| placed.text.starts_with(text));
        assert!(has("model-"), "a page has lines");
        assert!(has("Model and direction") && has("Per million"), "a page has heads");
    }
    for lines in 1..60 {
        let pages = self::pages(&samples::long(lines * 2));
        let last = pages.last().unwrap();
        let has = |text: &str| last.iter().any(|placed| placed.text.starts_with(text));
        assert!(!has("Total") || has("model-"), "{lines}");
    }
}

#[test]
fn characters_without_a_glyph_stay_in_the_copied_text() {
    let text = text(&samples::hostile());
    assert!(text.contains("東京支店") && text.contains("שלום") && text.contains("🏦"), "{text}");
    assert!(!text.contains('\u{e000}') && !text.contains('\u{feff}') && !text.contains('\0'));
}

/// Whole document: krilla's validators fail on a `.notdef` glyph and on a glyph without its text.
#[test]
fn arabic_and_hebrew_addresses_are_printed_with_their_own_fonts() {
    let mut invoice = samples::ordinary();
    invoice.buyer.name = AccountName::from_stored("شركة النور (Al Noor)".into());
    invoice.buyer.address = PostalAddress::from_stored(
        "شارع الملك فهد، مبنى 12\nالرياض ١٢٢١١\nרחוב הרצל 7 (קומה 2)\nתל אביב".into(),
    );
    let bytes = printable_pdf(&invoice, &PdfFonts::default()).unwrap();
    let plain = String::from_utf8_lossy(&bytes);
    assert!(plain.contains("NotoSansArabic") && plain.contains("NotoSansHebrew"));
    assert!(text(&invoice).contains("الرياض"), "read in the order of the text");
    let latin = pdf(&samples::ordinary()).unwrap();
    assert!(!String::from_utf8_lossy(&latin).contains("NotoSansArabic"), "unused fonts are left out");
}

#[test]
fn configured_fonts_print_what_the_embedded_ones_lack() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fonts/NotoSansCJK-sample.otf");
    let fonts = PdfFonts::read(&[path]).unwrap();
    let mut invoice = samples::ordinary();
    invoice.buyer.address = PostalAddress::from_stored("東京都千代田区丸の内一丁目\nTokyo".into());
    let error = printable_pdf(&invoice, &PdfFonts::default()).unwrap_err();
    assert!(error.contains("The billing address contains 東 (U+6771), 京 (U+4EAC)"), "{error}");
    let bytes = printable_pdf(&invoice, &fonts).unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("NotoSansCJK"));
    invoice.buyer.address = PostalAddress::from_stored("大阪".into());
    assert!(printable_pdf(&invoice, &fonts).is_err(), "the font has no such characters");
}

#[test]
fn document_with_a_replacement_character_is_not_issued() {
    let error = printable_pdf(&samples::hostile(), &PdfFonts::default()).unwrap_err();
    assert!(error.contains("The billing address contains 🏦 (U+1F3E6)"), "{error}");
    assert!(error.contains("The account name contains 東 (U+6771)"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_text_can_be_rendered(
        name in any::<String>(), address in any::<String>(), model in any::<String>(), reason in any::<String>()
    ) {
        let usage = [samples::used(&model, (1, 2), 3_000_000, 4_000_000)];
        let mut invoice = samples::invoice(&usage, &samples::terms("USD", None));
        invoice.seller.name = name;
        invoice.buyer.address = PostalAddress::from_stored(address);
        pdf(&samples::credit(&invoice, CreditAmount::Full, &reason)).unwrap();
    }
}
