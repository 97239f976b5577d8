//! PDFs of invoices and letters: A4 pages for archiving (PDF/A-2a) and for screen readers (PDF/UA-1).
//! They depend on the document and the configured fonts alone: no clock, no randomness, no system fonts.

mod characters;
mod content;
mod fonts;
mod letter;
mod page_layout;
mod printable;
mod shaping;
mod typeface;

use crate::text;
use chancery_domain::{Invoice, UnixMillis};
use content::{Content, compose};
pub use fonts::PdfFonts;
use krilla::configure::{Accessibility, Archival, ConfigurationBuilder};
use krilla::destination::XyzDestination;
use krilla::geom::Point;
use krilla::metadata::{DateTime, Metadata};
use krilla::outline::{Outline, OutlineNode};
use krilla::{Document, SerializeSettings};
pub use letter::LetterDocument;
use printable::describe_unprintable;
pub use printable::{UnprintableText, unprintable_letter_text, unprintable_text};
use typeface::Typefaces;

/// Prints with the embedded fonts alone, whatever the text.
pub fn pdf(invoice: &Invoice) -> Result<Vec<u8>, String> {
    pdf_with(invoice, &PdfFonts::default())
}

/// Fails if the fonts lack a character, so that an invoice with replacement characters is never issued.
pub fn printable_pdf(invoice: &Invoice, fonts: &PdfFonts) -> Result<Vec<u8>, String> {
    match unprintable_text(invoice, fonts)?.as_slice() {
        [] => pdf_with(invoice, fonts),
        texts => Err(describe_unprintable(texts)),
    }
}

/// Deterministic: the same invoice and fonts always give the same bytes.
fn pdf_with(invoice: &Invoice, fonts: &PdfFonts) -> Result<Vec<u8>, String> {
    let faces = Typefaces::load(fonts)?;
    let title = text::title(invoice);
    let description = Description {
        subject: format!("{title}, {}", invoice.seller.name),
        author: &invoice.seller.name,
        document_id: format!("chancery {title}"),
        created_at: invoice.issued_at,
        title,
    };
    write(compose(invoice, &faces), description)
}

/// Deterministic: the same letter and fonts always give the same bytes.
pub fn letter_pdf(letter: &LetterDocument<'_>, fonts: &PdfFonts) -> Result<Vec<u8>, String> {
    let faces = Typefaces::load(fonts)?;
    let description = Description {
        title: letter.title.to_owned(),
        subject: format!("{}, {}", letter.title, letter.firm_name),
        author: letter.firm_name,
        document_id: format!("chancery letter {}", letter.id),
        created_at: letter.at,
    };
    write(letter::compose(letter, &faces), description)
}

/// What a PDF says about itself.
struct Description<'a> {
    title: String,
    /// The title with the firm's name, which viewers show as the window's title.
    subject: String,
    author: &'a str,
    document_id: String,
    created_at: UnixMillis,
}

fn write(content: Content<'_>, description: Description<'_>) -> Result<Vec<u8>, String> {
    let Description { title, subject, author, document_id, created_at } = description;
    let configuration = ConfigurationBuilder::new()
        .with_archival_validator(Archival::A2_A)
        .with_accessibility_validator(Accessibility::UA1)
        .finish()
        .map_err(|error| format!("invalid PDF settings: {error:?}"))?;
    let settings = SerializeSettings { configuration, ..SerializeSettings::default() };
    let mut document = Document::new_with(settings);
    page_layout::draw(&mut document, content.layout_rows, content.elements, &content.running)?;
    let mut outline = Outline::new();
    outline.push_child(OutlineNode::new(title.clone(), XyzDestination::new(0, Point::from_xy(0.0, 0.0))));
    document.set_outline(outline);
    document.set_metadata(
        Metadata::new()
            .title(subject)
            .authors(vec![author.to_owned()])
            .language("en".to_owned())
            .creator("Chancery".to_owned())
            .document_id(document_id)
            .creation_date(pdf_date(created_at)),
    );
    document.finish().map_err(|error| format!("writing the PDF of {title} failed: {error:?}"))
}

fn pdf_date(at: UnixMillis) -> DateTime {
    let Ok(timestamp) = jiff::Timestamp::from_millisecond(at.0) else { return DateTime::new(1970) };
    let datetime = timestamp.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let small = |part: i8| u8::try_from(part).unwrap_or_default();
    DateTime::new(u16::try_from(datetime.year()).unwrap_or_default())
        .month(small(datetime.month()))
        .day(small(datetime.day()))
        .hour(small(datetime.hour()))
        .minute(small(datetime.minute()))
        .second(small(datetime.second()))
        .utc_offset_hour(0)
        .utc_offset_minute(0)
}

#[cfg(test)]
mod tests;
