//! Content and layout of a letter on the firm's letterhead.

use super::content::{Column, Content, GAP, LETTERHEAD_WIDTH, Side};
use super::page_layout::{Elements, Ink, LEFT, LayoutRow, RIGHT, RunningHeader, Style, WIDTH};
use super::typeface::{Typeface, Typefaces};
use chancery_domain::UnixMillis;
use krilla::tagging::Tag;
use std::num::NonZeroU16;

/// Space between paragraphs.
const PARAGRAPH_GAP: f32 = 9.0;
const TEXT_SIZE: f32 = 10.5;

/// A letter as it is printed. Its text is plain: blank lines separate paragraphs.
#[derive(Clone, Copy, Debug)]
pub struct LetterDocument<'a> {
    /// Identifies the letter, whatever its version: sending makes a new one, and the PDF stays the same.
    pub id: &'a str,
    pub firm_name: &'a str,
    /// The firm's address, in lines.
    pub letterhead: &'a str,
    /// Name and address, in lines.
    pub recipient: &'a str,
    /// As printed: `13 November 2026`.
    pub date: &'a str,
    pub title: &'a str,
    pub text: &'a str,
    pub at: UnixMillis,
}

pub fn compose<'a>(letter: &LetterDocument<'_>, faces: &'a Typefaces) -> Content<'a> {
    let mut composer = Composer { faces, elements: Elements::default(), layout_rows: Vec::new() };
    composer.head(letter);
    composer.recipient(letter);
    composer.body(letter);
    let text = format!("{}, {}", letter.title, letter.firm_name);
    let running = RunningHeader { face: &faces.sans, text, table_head: Vec::new() };
    Content { layout_rows: composer.layout_rows, elements: composer.elements, running }
}

struct Composer<'a> {
    faces: &'a Typefaces,
    elements: Elements,
    layout_rows: Vec<LayoutRow<'a>>,
}

impl<'a> Composer<'a> {
    fn style(face: &'a Typeface, size: f32, color: Ink) -> Style<'a> {
        Style { face, size, leading: size * 1.45, color }
    }

    /// The firm on the left, the date on the right.
    fn head(&mut self, letter: &LetterDocument<'_>) {
        let faces = self.faces;
        let mut left = Column::new(Side::Left(LEFT), LETTERHEAD_WIDTH);
        let name = self.elements.add(None, Tag::P);
        let name_style = Style { leading: 25.0, ..Self::style(&faces.serif, 19.0, Ink::FIRST) };
        left.write(name, letter.firm_name, name_style);
        let small = Self::style(&faces.sans, 8.5, Ink::SECOND);
        if let Some(letterhead) = without_blank_lines(letter.letterhead) {
            let element = self.elements.add(None, Tag::P);
            left.skip(3.0);
            left.write(element, &letterhead, small);
        }
        let mut right = Column::new(Side::Right(RIGHT), WIDTH - LETTERHEAD_WIDTH - GAP);
        let date = self.elements.add(None, Tag::P);
        // Aligns its baseline with the name's.
        right.skip(8.0);
        right.write(date, letter.date, Self::style(&faces.sans, 9.0, Ink::SECOND));
        self.put([left, right]);
        self.layout_rows.push(LayoutRow::space(22.0));
        self.layout_rows.push(LayoutRow::rule(0.5, Ink::HAIRLINE));
        self.layout_rows.push(LayoutRow::space(26.0));
    }

    fn recipient(&mut self, letter: &LetterDocument<'_>) {
        let Some(recipient) = without_blank_lines(letter.recipient) else { return };
        let element = self.elements.add(None, Tag::P);
        let mut column = Column::new(Side::Left(LEFT), LETTERHEAD_WIDTH);
        column.write(element, &recipient, Self::style(&self.faces.sans, 9.5, Ink::FIRST));
        self.put([column]);
        self.layout_rows.push(LayoutRow::space(30.0));
    }

    fn body(&mut self, letter: &LetterDocument<'_>) {
        let faces = self.faces;
        let tag = Tag::Hn(NonZeroU16::MIN, Some(letter.title.to_owned()));
        let heading = self.elements.add(None, tag);
        let mut title = Column::new(Side::Left(LEFT), WIDTH);
        title.write(heading, letter.title, Self::style(&faces.semibold, 12.0, Ink::FIRST));
        self.put([title]);
        // The title never stands alone at the end of a page.
        if let Some(last) = self.layout_rows.last_mut() {
            last.is_kept_with_next = true;
        }
        self.layout_rows.push(LayoutRow { is_kept_with_next: true, ..LayoutRow::space(12.0) });
        let style = Self::style(&faces.serif, TEXT_SIZE, Ink::FIRST);
        for paragraph in paragraphs(letter.text) {
            let element = self.elements.add(None, Tag::P);
            let mut column = Column::new(Side::Left(LEFT), WIDTH);
            column.write(element, &paragraph, style);
            self.put([column]);
            self.layout_rows.push(LayoutRow::space(PARAGRAPH_GAP));
        }
    }

    fn put<const N: usize>(&mut self, columns: [Column<'a>; N]) {
        let texts = columns.into_iter().flat_map(|column| column.texts).collect();
        self.layout_rows.extend(LayoutRow::of_columns(texts));
    }
}

/// `None` if no line is left.
fn without_blank_lines(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs: Vec<Vec<&str>> = vec![Vec::new()];
    for line in text.lines() {
        match (line.trim().is_empty(), paragraphs.last_mut()) {
            (false, Some(paragraph)) => paragraph.push(line),
            _ => paragraphs.push(Vec::new()),
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs.into_iter().map(|lines| lines.join("\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fonts::PdfFonts;
    use super::super::letter_pdf;
    use super::super::page_layout::{paginate, placed};
    use super::*;

    fn letter(text: &str) -> LetterDocument<'_> {
        LetterDocument {
            id: "7",
            firm_name: "Marlow & Finch",
            letterhead: "48 Commercial Wharf\n\nBoston, MA 02110",
            recipient: "Harbour Lane Bakery\nPriya Raman\n12 Harbour Lane\nBoston",
            date: "13 November 2026",
            title: "Your lease",
            text,
            at: UnixMillis(1_794_561_240_000),
        }
    }

    fn pages(letter: &LetterDocument<'_>) -> Vec<Vec<String>> {
        let faces = Typefaces::load(&PdfFonts::default()).unwrap();
        let content = compose(letter, &faces);
        let pages = paginate(content.layout_rows, &[]);
        pages.iter().map(|page| placed(page).into_iter().map(|text| text.text).collect()).collect()
    }

    #[test]
    fn letter_has_letterhead_date_recipient_title_and_paragraphs_in_reading_order() {
        let pages = pages(&letter("Dear Priya,\n\nThank you for your call.\n\nMaya Chen\nPartner"));
        assert_eq!(
            pages,
            [[
                "Marlow & Finch",
                "48 Commercial Wharf",
                "Boston, MA 02110",
                "13 November 2026",
                "Harbour Lane Bakery",
                "Priya Raman",
                "12 Harbour Lane",
                "Boston",
                "Your lease",
                "Dear Priya,",
                "Thank you for your call.",
                "Maya Chen",
                "Partner",
            ]]
        );
    }

    #[test]
    fn long_letter_continues_on_further_pages_without_losing_a_line() {
        let text: Vec<String> = (0..200).map(|number| format!("Paragraph {number}.")).collect();
        let pages = pages(&letter(&text.join("\n\n")));
        assert!(pages.len() > 2, "{} pages", pages.len());
        let printed: Vec<&String> =
            pages.iter().flatten().filter(|line| line.starts_with("Paragraph")).collect();
        assert_eq!(printed, text.iter().collect::<Vec<_>>());
    }

    #[test]
    fn same_letter_gives_the_same_pdf_and_another_a_different_one() {
        let one = letter_pdf(&letter("Dear Priya,"), &PdfFonts::default()).unwrap();
        assert!(one.starts_with(b"%PDF-"));
        assert_eq!(one, letter_pdf(&letter("Dear Priya,"), &PdfFonts::default()).unwrap());
        assert_ne!(one, letter_pdf(&letter("Dear Tom,"), &PdfFonts::default()).unwrap());
    }
}
