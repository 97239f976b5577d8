//! The PDF: A4 pages that look like a firm's invoice, made to be kept (PDF/A-2a) and to be read by screen readers (PDF/UA-1).
//! It depends on nothing but the invoice: no clock, no chance, no fonts of the machine.

mod content;
mod sheet;
mod typeface;

use crate::words;
use chancery_domain::{Invoice, UnixMillis};
use content::compose;
use krilla::configure::{Accessibility, Archival, ConfigurationBuilder};
use krilla::destination::XyzDestination;
use krilla::geom::Point;
use krilla::metadata::{DateTime, Metadata};
use krilla::outline::{Outline, OutlineNode};
use krilla::{Document, SerializeSettings};
use typeface::Typefaces;

/// The same invoice always gives the same bytes.
pub fn pdf(invoice: &Invoice) -> Result<Vec<u8>, String> {
    let faces = Typefaces::load()?;
    let configuration = ConfigurationBuilder::new()
        .with_archival_validator(Archival::A2_A)
        .with_accessibility_validator(Accessibility::UA1)
        .finish()
        .map_err(|error| format!("the kind of PDF cannot be made: {error:?}"))?;
    let settings = SerializeSettings { configuration, ..SerializeSettings::default() };
    let mut document = Document::new_with(settings);
    let title = words::title(invoice);
    let content = compose(invoice, &faces);
    sheet::draw(&mut document, content.strips, content.elements, &content.running)?;
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
            .creation_date(moment(invoice.issued_at)),
    );
    document.finish().map_err(|error| format!("{title} cannot be made into a PDF: {error:?}"))
}

fn moment(at: UnixMillis) -> DateTime {
    let Ok(timestamp) = jiff::Timestamp::from_millisecond(at.0) else { return DateTime::new(1970) };
    let moment = timestamp.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let small = |part: i8| u8::try_from(part).unwrap_or_default();
    DateTime::new(u16::try_from(moment.year()).unwrap_or_default())
        .month(small(moment.month()))
        .day(small(moment.day()))
        .hour(small(moment.hour()))
        .minute(small(moment.minute()))
        .second(small(moment.second()))
        .utc_offset_hour(0)
        .utc_offset_minute(0)
}

#[cfg(test)]
mod tests;
