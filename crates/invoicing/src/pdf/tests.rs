use super::content::Content;
use super::sheet::{LEFT, PlacedText, RIGHT, onto_pages, placed};
use super::*;
use crate::samples;
use chancery_domain::{CreditAmount, MinorUnits, PostalAddress};
use proptest::prelude::*;

/// What is written on each page, in reading order.
fn pages(invoice: &Invoice) -> Vec<Vec<PlacedText>> {
    let faces = Typefaces::load().unwrap();
    let Content { strips, running, .. } = compose(invoice, &faces);
    onto_pages(strips, &running.table_head).iter().map(placed).collect()
}

/// All of it without ends of lines and blanks, for names that are broken over lines.
fn text(invoice: &Invoice) -> String {
    pages(invoice).into_iter().flatten().map(|text| text.text.replace(' ', "")).collect()
}

fn yen() -> Invoice {
    let usage = [samples::used("qwen2.5-7b", (45_000, 135_000), 182_640_275, 24_118_906)];
    samples::invoice(&usage, &samples::terms("JPY", Some("10")))
}

/// An address as long as an address can be, a letter a line.
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
        samples::credit(&samples::ordinary(), CreditAmount::Whole, "It was sent to the wrong address.");
    vec![
        ("ordinary", samples::ordinary()),
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

/// `CHANCERY_SHOW_PDF=FOLDER` keeps the files, to be looked at.
#[test]
fn every_sample_becomes_a_pdf_for_archives_and_screen_readers_and_always_the_same() {
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
fn nothing_is_cut_off_and_nothing_overlaps() {
    for (name, invoice) in all_samples() {
        for page in pages(&invoice) {
            for (place, text) in page.iter().enumerate() {
                let PlacedText { left, right, top, bottom, .. } = *text;
                assert!(left >= LEFT - 0.1 && right <= RIGHT + 0.1, "{name}: {text:?} is off the page");
                assert!(top >= 50.0 && bottom <= 780.0, "{name}: {text:?} is off the page");
                for other in &page[..place] {
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
fn an_invoice_says_all_that_it_must() {
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
        "Textgeneration,October2026(UTC)",
        "2December2026",
        "Amountdue$207.70",
        "Amount,USD",
        "qwen2.5-7b,input182,640,2750.3054.792082554.79",
        "Subtotal195.48",
        "Salestax,6.25\u{a0}%12.22",
        "Total$207.70",
        "account000123456.",
        "Pleasequote2026-0031.",
        "roundedtothecent,halvestotheevencent.",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn a_credit_note_names_its_invoice_and_its_reason_and_is_negative() {
    let text = text(&part());
    for expected in [
        "Creditnote2026-0032",
        "CreditsInvoice2026-0031",
        "Whyinvoice2026-0031iscredited:Theoutageof14October",
        "Partofinvoice2026-0031-50.00-50.00",
        "Salestax,6.25\u{a0}%-3.12",
        "Total-$53.12",
        "Amountcredited-$53.12",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert!(!text.contains("Howtopay"), "nobody pays a credit note");
}

#[test]
fn the_heads_of_the_table_are_repeated_on_every_page_and_sums_never_stand_alone() {
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
fn a_character_that_no_font_has_is_still_there_for_whoever_copies_the_text() {
    let text = text(&samples::hostile());
    assert!(text.contains("東京支店") && text.contains("שלום") && text.contains("🏦"), "{text}");
    assert!(!text.contains('\u{e000}') && !text.contains('\u{feff}') && !text.contains('\0'));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_text_can_be_in_a_document(
        name in any::<String>(), address in any::<String>(), model in any::<String>(), reason in any::<String>()
    ) {
        let usage = [samples::used(&model, (1, 2), 3_000_000, 4_000_000)];
        let mut invoice = samples::invoice(&usage, &samples::terms("USD", None));
        invoice.seller.name = name;
        invoice.buyer.address = PostalAddress::from_stored(address);
        pdf(&samples::credit(&invoice, CreditAmount::Whole, &reason)).unwrap();
    }
}
