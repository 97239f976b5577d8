//! What stands on an invoice or a credit note, and where.

use super::sheet::{ElementId, Elements, Ink, LEFT, RIGHT, Rule, Running, Strip, Style, Text, WIDTH};
use super::typeface::{Line, Typeface, Typefaces};
use crate::words;
use chancery_domain::{Day, Invoice, InvoiceKind, InvoiceLine, InvoiceNumber, LineItem};
use krilla::tagging::{TableHeaderScope, Tag};
use std::num::NonZeroU16;

/// Between columns.
const GAP: f32 = 16.0;
/// The name and the letterhead; the title has the rest of the width.
const LETTERHEAD_WIDTH: f32 = 264.0;
/// Sizes that a table may have; the first in which its columns leave enough room for names is taken.
const TABLE_SIZES: [f32; 4] = [9.0, 8.0, 7.0, 6.0];
/// The room for names of models.
const MIN_NAME_WIDTH: f32 = 120.0;
const CELL_PADDING: f32 = 5.0;
const SUMS_WIDTH: f32 = 226.0;

pub struct Content<'a> {
    pub strips: Vec<Strip<'a>>,
    pub elements: Elements,
    pub running: Running<'a>,
}

struct Composer<'a> {
    faces: &'a Typefaces,
    invoice: &'a Invoice,
    elements: Elements,
    strips: Vec<Strip<'a>>,
}

#[derive(Clone, Copy)]
enum Side {
    Left(f32),
    /// Ends there.
    Right(f32),
}

pub fn compose<'a>(invoice: &'a Invoice, faces: &'a Typefaces) -> Content<'a> {
    let mut composer = Composer { faces, invoice, elements: Elements::default(), strips: Vec::new() };
    composer.letterhead();
    composer.facts();
    composer.reason();
    let table_head = composer.table();
    composer.sums();
    composer.foot();
    let text = format!("{}, {}", words::title(invoice), invoice.seller.name);
    let running = Running { face: &faces.sans, text, table_head };
    Content { strips: composer.strips, elements: composer.elements, running }
}

impl<'a> Composer<'a> {
    fn plain(&self, size: f32, color: Ink) -> Style<'a> {
        Style { face: &self.faces.sans, size, leading: size * 1.45, color }
    }

    fn strong(&self, size: f32) -> Style<'a> {
        Style { face: &self.faces.semibold, size, leading: size * 1.45, color: Ink::FIRST }
    }

    /// Who sends it, what it is, and when it was issued.
    fn letterhead(&mut self) {
        let (invoice, faces) = (self.invoice, self.faces);
        let name = self.elements.add(None, Tag::P);
        let name_style = Style { face: &faces.serif, size: 19.0, leading: 25.0, color: Ink::FIRST };
        let mut left = Column::new(Side::Left(LEFT), LETTERHEAD_WIDTH);
        left.write(name, &invoice.seller.name, name_style);
        if !invoice.seller.letterhead.trim().is_empty() {
            let letterhead = self.elements.add(None, Tag::P);
            left.skip(3.0);
            left.write(letterhead, &invoice.seller.letterhead, self.plain(8.5, Ink::SECOND));
        }
        let title = words::title(invoice);
        let heading = self.elements.add(None, Tag::Hn(NonZeroU16::MIN, Some(title.clone())));
        let mut right = Column::new(Side::Right(RIGHT), WIDTH - LETTERHEAD_WIDTH - GAP);
        // Its baseline is that of the name.
        right.skip(3.0);
        right.write(heading, &title, Style { leading: 21.0, ..self.strong(15.0) });
        let issued = self.elements.add(None, Tag::P);
        right.skip(4.0);
        right.write(issued, &words::day(Day::of(invoice.issued_at)), self.plain(9.0, Ink::SECOND));
        self.put_columns(vec![left, right]);
        self.strips.push(Strip::space(22.0));
    }

    /// To whom, for what, until when and how much.
    fn facts(&mut self) {
        let invoice = self.invoice;
        let total = invoice.bill.currency.to_read(invoice.bill.total);
        let period = format!("Text generation,\n{} (UTC)", words::month(invoice.month));
        let (when, how_much) = match &invoice.kind {
            InvoiceKind::Invoice => (("Due", words::day(invoice.due)), "Amount due"),
            InvoiceKind::CreditNote { of, .. } => (("Credits", format!("Invoice {of}")), "Amount credited"),
        };
        let label = self.plain(8.0, Ink::SECOND);
        let (value, strong) = (self.plain(9.5, Ink::FIRST), self.strong(9.5));
        let widest =
            |text: &str, style: Style<'_>, least: f32| style.face.width(text, style.size).max(least) + 1.0;
        let amount_width = widest(&total, strong, 78.0);
        let when_width = widest(&when.1, value, 84.0);
        let period_width = 116.0;
        let to_width = (WIDTH - amount_width - when_width - period_width - 3.0 * GAP).max(80.0);

        self.strips.push(Strip::rule(0.5, Ink::HAIRLINE));
        self.strips.push(Strip::space(12.0));
        let mut columns = Vec::new();
        let mut x = LEFT;
        let buyer = &invoice.buyer;
        let parts: [(&str, Vec<(&str, Style<'a>)>, f32); 3] = [
            ("To", vec![(buyer.name.as_str(), strong), (buyer.address.as_str(), value)], to_width),
            ("For", vec![(&period, value)], period_width),
            (when.0, vec![(&when.1, value)], when_width),
        ];
        for (name, values, width) in parts {
            let mut column = Column::new(Side::Left(x), width);
            self.write_fact(&mut column, name, label, &values);
            columns.push(column);
            x += width + GAP;
        }
        let mut amount = Column::new(Side::Right(RIGHT), amount_width);
        self.write_fact(&mut amount, how_much, label, &[(&total, strong)]);
        columns.push(amount);
        self.put_columns(columns);
        self.strips.push(Strip::space(14.0));
        self.strips.push(Strip::rule(0.5, Ink::HAIRLINE));
    }

    fn write_fact(
        &mut self,
        column: &mut Column<'a>,
        name: &str,
        label: Style<'a>,
        values: &[(&str, Style<'a>)],
    ) {
        let fact = self.elements.add(None, Tag::Div);
        let element = self.elements.add(Some(fact), Tag::P);
        column.write(element, name, label);
        column.skip(1.5);
        for (text, style) in values.iter().filter(|(text, _)| !text.trim().is_empty()) {
            let element = self.elements.add(Some(fact), Tag::P);
            column.write(element, text, *style);
        }
    }

    fn reason(&mut self) {
        let InvoiceKind::CreditNote { of, reason } = &self.invoice.kind else { return };
        let element = self.elements.add(None, Tag::P);
        let mut column = Column::new(Side::Left(LEFT), WIDTH);
        column.write(
            element,
            &format!("Why invoice {of} is credited: {reason}"),
            self.plain(9.5, Ink::FIRST),
        );
        self.strips.push(Strip::space(12.0));
        self.put_columns(vec![column]);
    }

    /// The lines; gives the head, which is repeated on every page.
    fn table(&mut self) -> Vec<Strip<'a>> {
        let bill = &self.invoice.bill;
        let rows: Vec<Row> = bill.lines.iter().map(|line| Row::of(line, self.invoice)).collect();
        let heads =
            ["Tokens", "Per million", "Exact", &format!("Amount, {}", bill.currency)].map(str::to_owned);
        let layout = TableLayout::of(&rows, &heads, self.faces);
        let summary = format!("The lines of {}, in {}", words::title(self.invoice), bill.currency);
        let table = self.elements.add(None, Tag::Table.with_summary(Some(summary)));

        self.strips.push(Strip::space(14.0));
        let head_group = self.elements.add(Some(table), Tag::THead);
        let head_row = self.elements.add(Some(head_group), Tag::TR);
        let style = self.plain(layout.size - 1.0, Ink::SECOND);
        let mut columns = Vec::new();
        let mut head_cell = |elements: &mut Elements, side: Side, width: f32, text: &str| {
            let cell = elements.add(Some(head_row), Tag::TH(TableHeaderScope::Column));
            let mut column = Column::new(side, width);
            column.write(cell, text, style);
            columns.push(column);
        };
        // A note over a part has no other lines.
        let has_part = rows.iter().any(|row| row.is_part);
        let first_head = if has_part { "What is credited" } else { "Model and direction" };
        head_cell(&mut self.elements, Side::Left(LEFT), layout.name_width, first_head);
        let first_figure = if has_part { EXACT } else { 0 };
        for (place, text) in heads.iter().enumerate().skip(first_figure) {
            head_cell(&mut self.elements, Side::Right(layout.ends[place]), layout.widths[place], text);
        }
        let mut head = Strip::of_columns(columns.into_iter().flat_map(|column| column.texts).collect());
        head.push(Strip::space(4.0));
        head.push(Strip::rule(0.8, Ink::FIRST));
        head.iter_mut().for_each(|strip| strip.is_kept_with_next = true);
        self.strips.extend(head.iter().cloned());

        let body = self.elements.add(Some(table), Tag::TBody);
        let last = rows.len().saturating_sub(1);
        for (place, row) in rows.iter().enumerate() {
            self.table_row(row, &layout, body, place == last);
        }
        head
    }

    fn table_row(&mut self, row: &Row, layout: &TableLayout<'_>, body: ElementId, is_last: bool) {
        let size = layout.size;
        let (first, second) = (self.plain(size, Ink::FIRST), self.plain(size, Ink::SECOND));
        let tag_row = self.elements.add(Some(body), Tag::TR);
        let name_width = if row.is_part { layout.ends[1] - LEFT } else { layout.name_width };
        let name_cell = self.elements.add(Some(tag_row), Tag::TH(TableHeaderScope::Row));
        let mut name = Column::new(Side::Left(LEFT), name_width);
        name.write(name_cell, &row.name, first);
        let mut columns = vec![name];
        for (place, text) in row.figures.iter().enumerate() {
            // A part has no tokens and no price; its name stands there.
            let Some(text) = text else { continue };
            let cell = self.elements.add(Some(tag_row), Tag::TD);
            let style = if place == EXACT { second } else { first };
            let end = layout.ends[place] - layout.after_point(place, text);
            let mut column = Column::new(Side::Right(end), layout.widths[place]);
            column.write_line(cell, style.face.line(text), style);
            columns.push(column);
        }
        let mut strips = vec![Strip::space(CELL_PADDING)];
        strips.extend(Strip::of_columns(columns.into_iter().flat_map(|column| column.texts).collect()));
        strips.push(Strip::space(CELL_PADDING));
        strips.push(Strip::rule(0.4, Ink::HAIRLINE));
        let end = strips.len() - 1;
        for (place, strip) in strips.iter_mut().enumerate() {
            strip.is_of_table = true;
            // Sums never stand on a page without a line.
            strip.is_kept_with_next = place != end || is_last;
        }
        self.strips.extend(strips);
    }

    fn sums(&mut self) {
        let bill = &self.invoice.bill;
        let currency = &bill.currency;
        let (plain, strong) = (self.plain(9.5, Ink::FIRST), self.strong(11.0));
        let mut rows = vec![("Subtotal".to_owned(), currency.figures(bill.subtotal), plain)];
        if let Some(tax) = &bill.tax {
            let name = format!("{}, {}\u{a0}%", tax.name, tax.rate);
            rows.push((name, currency.figures(tax.amount), plain));
        }
        rows.push(("Total".to_owned(), currency.to_read(bill.total), strong));
        let summary = format!("The sums of {}", words::title(self.invoice));
        let table = self.elements.add(None, Tag::Table.with_summary(Some(summary)));
        let body = self.elements.add(Some(table), Tag::TBody);
        let last = rows.len() - 1;
        let mut strips = vec![Strip::space(10.0)];
        for (place, (name, value, style)) in rows.into_iter().enumerate() {
            let row = self.elements.add(Some(body), Tag::TR);
            let name_cell = self.elements.add(Some(row), Tag::TH(TableHeaderScope::Row));
            let value_cell = self.elements.add(Some(row), Tag::TD);
            let value_width = style.face.width(&value, style.size) + 1.0;
            let start = (RIGHT - SUMS_WIDTH).min(RIGHT - value_width - GAP - 80.0).max(LEFT);
            let mut label = Column::new(Side::Left(start), RIGHT - start - value_width - GAP);
            label.write(name_cell, &name, style);
            let mut amount = Column::new(Side::Right(RIGHT), value_width);
            amount.write(value_cell, &value, style);
            if place == last {
                let rule = Rule { from: start, to: RIGHT, top: 4.0, width: 0.8, color: Ink::FIRST };
                strips.push(Strip { height: 9.0, rules: vec![rule], ..Strip::default() });
            }
            strips.extend(Strip::of_columns(label.texts.into_iter().chain(amount.texts).collect()));
            strips.push(Strip::space(2.0));
        }
        let end = strips.len() - 1;
        strips.iter_mut().enumerate().for_each(|(place, strip)| strip.is_kept_with_next = place != end);
        self.strips.extend(strips);
    }

    /// How to pay, and how the figures come about.
    fn foot(&mut self) {
        let half = (WIDTH - 2.0 * GAP) / 2.0;
        let (first, second) = self.foot_texts();
        let mut columns = Vec::new();
        for (x, (heading, text)) in [(LEFT, first), (LEFT + half + 2.0 * GAP, second)] {
            let level = NonZeroU16::MIN.saturating_add(1);
            let title = self.elements.add(None, Tag::Hn(level, Some(heading.to_owned())));
            let body = self.elements.add(None, Tag::P);
            let mut column = Column::new(Side::Left(x), half);
            column.write(title, heading, self.strong(9.0));
            column.skip(2.0);
            column.write(body, &text, self.plain(8.5, Ink::FIRST));
            columns.push(column);
        }
        self.strips.push(Strip { is_kept_with_next: true, ..Strip::space(26.0) });
        self.strips.push(Strip { is_kept_with_next: true, ..Strip::rule(0.5, Ink::HAIRLINE) });
        self.strips.push(Strip { is_kept_with_next: true, ..Strip::space(12.0) });
        self.put_columns(columns);
    }

    fn foot_texts(&self) -> ((&'static str, String), (&'static str, String)) {
        let Invoice { number, kind, seller, bill, .. } = self.invoice;
        let rounding = words::rounding(&bill.currency);
        let taxed = bill.tax.is_some();
        match kind {
            InvoiceKind::Invoice => {
                let payment = format!("{}\nPlease quote {number}.", seller.payment);
                let total = match taxed {
                    true => "The tax is rounded the same way; the total is the sum of the lines and the tax.",
                    false => "The total is the sum of the lines.",
                };
                let rule = format!("Each line is tokens × price ÷ 1,000,000, rounded to {rounding}. {total}");
                (("How to pay", payment.trim_start().to_owned()), ("How it adds up", rule))
            }
            InvoiceKind::CreditNote { of, .. } => {
                let use_of_it = format!(
                    "It is taken off what is owed for invoice {of}, or paid back where that invoice has been paid. Please \
                     quote {number}."
                );
                (("What becomes of it", use_of_it), ("How it adds up", self.credit_rule(*of, taxed)))
            }
        }
    }

    fn credit_rule(&self, of: InvoiceNumber, is_taxed: bool) -> String {
        let is_whole = self.invoice.bill.lines.iter().all(|line| !matches!(line.item, LineItem::Part));
        let what = match is_whole {
            true => format!("Each line takes back the same line of invoice {of}."),
            false => format!("The amount is a part of the subtotal of invoice {of}."),
        };
        let tax = "The tax is that on everything credited so far, less what earlier credit notes took back.";
        if is_taxed { format!("{what} {tax}") } else { what }
    }

    fn put_columns(&mut self, columns: Vec<Column<'a>>) {
        self.strips.extend(Strip::of_columns(columns.into_iter().flat_map(|column| column.texts).collect()));
    }
}

/// Texts one below the other, on one side of a width.
struct Column<'a> {
    side: Side,
    width: f32,
    bottom: f32,
    texts: Vec<Text<'a>>,
}

impl<'a> Column<'a> {
    fn new(side: Side, width: f32) -> Self {
        Self { side, width, bottom: 0.0, texts: Vec::new() }
    }

    fn skip(&mut self, height: f32) {
        self.bottom += height;
    }

    fn write(&mut self, element: ElementId, text: &str, style: Style<'a>) {
        for line in style.face.wrapped(text, style.size, self.width) {
            self.write_line(element, line, style);
        }
    }

    fn write_line(&mut self, element: ElementId, line: Line, style: Style<'a>) {
        let x = match self.side {
            Side::Left(x) => x,
            Side::Right(end) => end - line.width_em * style.size,
        };
        self.texts.push(Text { element: Some(element), x, top: self.bottom, line, style });
        self.bottom += style.leading;
    }
}

/// Which of a row's figures is the exact amount.
const EXACT: usize = 2;

/// A line as it is written.
struct Row {
    name: String,
    is_part: bool,
    /// Tokens, price per million, exact amount, amount.
    figures: [Option<String>; 4],
}

impl Row {
    fn of(line: &InvoiceLine, invoice: &Invoice) -> Self {
        let currency = &invoice.bill.currency;
        let exact = Some(words::exact(line.exact));
        let amount = Some(currency.figures(line.amount));
        match (&line.item, &invoice.kind) {
            (LineItem::Tokens { model, direction, tokens, price }, _) => Self {
                name: format!("{model}, {}", direction.as_str()),
                is_part: false,
                figures: [Some(words::grouped(*tokens)), Some(price.to_string()), exact, amount],
            },
            (LineItem::Part, kind) => {
                let name = match kind {
                    InvoiceKind::CreditNote { of, .. } => format!("Part of invoice {of}"),
                    InvoiceKind::Invoice => "Part".to_owned(),
                };
                Self { name, is_part: true, figures: [None, None, exact, amount] }
            }
        }
    }
}

/// Where the columns of the table are.
struct TableLayout<'a> {
    size: f32,
    face: &'a Typeface,
    name_width: f32,
    widths: [f32; 4],
    /// Their right ends.
    ends: [f32; 4],
    /// Width of the longest part of a column's figures that stands after the point, in the size of the font.
    longest_fractions_em: [f32; 4],
}

impl<'a> TableLayout<'a> {
    fn of(rows: &[Row], heads: &[String; 4], faces: &'a Typefaces) -> Self {
        let mut layout = Self::at_size(TABLE_SIZES[0], rows, heads, &faces.sans);
        for size in TABLE_SIZES {
            layout = Self::at_size(size, rows, heads, &faces.sans);
            if layout.name_width >= MIN_NAME_WIDTH {
                break;
            }
        }
        layout
    }

    fn at_size(size: f32, rows: &[Row], heads: &[String; 4], face: &'a Typeface) -> Self {
        let longest_em = |place: usize, part: fn(&str) -> &str| {
            let figures = rows.iter().filter_map(|row| row.figures[place].as_deref());
            figures.map(|text| face.line(part(text)).width_em).fold(0.0_f32, f32::max)
        };
        let places = [0, 1, 2, 3];
        let longest_fractions_em = places.map(|place| longest_em(place, fraction));
        let widths = places.map(|place| {
            let figures_em = longest_em(place, whole) + longest_fractions_em[place];
            (figures_em * size).max(face.width(&heads[place], size - 1.0)) + 1.0
        });
        let gap = GAP * size / TABLE_SIZES[0];
        let mut ends = [RIGHT; 4];
        for place in (0..3).rev() {
            ends[place] = ends[place + 1] - widths[place + 1] - gap;
        }
        let name_width = ends[0] - widths[0] - gap - LEFT;
        Self { size, face, name_width, widths, ends, longest_fractions_em }
    }

    /// How far before the end of its column a figure ends, so that all of them have their points below each other.
    fn after_point(&self, place: usize, figure: &str) -> f32 {
        (self.longest_fractions_em[place] - self.face.line(fraction(figure)).width_em) * self.size
    }
}

/// What stands after the point.
fn fraction(figure: &str) -> &str {
    figure.split_once('.').map_or("", |(_, fraction)| fraction)
}

/// What stands before it, and the point.
fn whole(figure: &str) -> &str {
    &figure[..figure.len() - fraction(figure).len()]
}
