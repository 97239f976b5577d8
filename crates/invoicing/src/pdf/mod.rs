//! The PDF: A4 pages for archiving (PDF/A-2a) and for screen readers (PDF/UA-1).
//! It depends on the invoice alone: no clock, no randomness, no system fonts.

mod content;
mod page_layout;
mod typeface;

use crate::text;
use chancery_domain::{Invoice, UnixMillis};
use content::compose;
use krilla::configure::{Accessibility, Archival, ConfigurationBuilder};
use krilla::destination::XyzDestination;
use krilla::geom::Point;
use krilla::metadata::{DateTime, Metadata};
use krilla::outline::{Outline, OutlineNode};
use krilla::{Document, SerializeSettings};
use typeface::Typefaces;

/// Deterministic: the same invoice always gives the same bytes.
pub fn pdf(invoice: &Invoice) -> Result<Vec<u8>, String> {
    let faces = Typefaces::load()?;
    let configuration = ConfigurationBuilder::new()
        .with_archival_validator(Archival::A2_A)
        .with_accessibility_validator(Accessibility::UA1)
        .finish()
        .map_err(|error| format!("invalid PDF settings: {error:?}"))?;
    let settings = SerializeSettings { configuration, ..SerializeSettings::default() };
    let mut document = Document::new_with(settings);
    let title = text::title(invoice);
    let content = compose(invoice, &faces);
    page_layout::draw(&mut document, content.layout_rows, content.elements, &content.running)?;
    let mut outline = Outline::new();
    outline.push_child(OutlineNode::new(title.clone(), XyzDestination::new(0, Point::from_xy(0.0, 0.0))));
    document.set_outline(outline);
    document.set_metadata(
        Metadata::new()
            .title(format!("{title}, {}", invoice.seller.name))
            .authors(vec![invoice.seller.name.clone()])
            .language("en".to_owned())
            .creator("Chancery".to_owned())
            .document_id(format!("chancery {title}"))
            .creation_date(pdf_date(invoice.issued_at)),
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
