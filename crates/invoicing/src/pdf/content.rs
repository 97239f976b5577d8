//! Content and layout of an invoice or credit note.

use super::page_layout::{
    ElementId, Elements, Ink, LEFT, LayoutRow, RIGHT, Rule, RunningHeader, Style, Text, WIDTH,
};
use super::typeface::{Line, Typeface, Typefaces};
use crate::text;
use chancery_domain::{Day, Invoice, InvoiceKind, InvoiceLine, LineItem, group_thousands};
use krilla::tagging::{TableHeaderScope, Tag};
use std::num::NonZeroU16;

/// Gap between columns.
pub const GAP: f32 = 16.0;
/// Width of the firm's name and letterhead. The title gets the rest.
pub const LETTERHEAD_WIDTH: f32 = 264.0;
/// Font sizes for the table. The first one that leaves `MIN_NAME_WIDTH` for names is used.
const TABLE_SIZES: [f32; 4] = [9.0, 8.0, 7.0, 6.0];
/// Minimum width of the column with model names.
const MIN_NAME_WIDTH: f32 = 120.0;
const CELL_PADDING: f32 = 5.0;
const SUMS_WIDTH: f32 = 226.0;

pub struct Content<'a> {
    pub layout_rows: Vec<LayoutRow<'a>>,
    pub elements: Elements,
    pub running: RunningHeader<'a>,
}

struct Composer<'a> {
    faces: &'a Typefaces,
    invoice: &'a Invoice,
    elements: Elements,
    layout_rows: Vec<LayoutRow<'a>>,
}

#[derive(Clone, Copy)]
pub enum Side {
    Left(f32),
    /// Right-aligned: the text ends at this x.
    Right(f32),
}

pub fn compose<'a>(invoice: &'a Invoice, faces: &'a Typefaces) -> Content<'a> {
    let mut composer = Composer { faces, invoice, elements: Elements::default(), layout_rows: Vec::new() };
    composer.letterhead();
    composer.details();
    composer.reason();
    let table_head = composer.table();
    composer.sums();
    composer.foot();
    let text = format!("{}, {}", text::title(invoice), invoice.seller.name);
    let running = RunningHeader { face: &faces.sans, text, table_head };
    Content { layout_rows: composer.layout_rows, elements: composer.elements, running }
}

impl<'a> Composer<'a> {
    fn plain(&self, size: f32, color: Ink) -> Style<'a> {
        Style { face: &self.faces.sans, size, leading: size * 1.45, color }
    }

    fn strong(&self, size: f32) -> Style<'a> {
        Style { face: &self.faces.semibold, size, leading: size * 1.45, color: Ink::FIRST }
    }

    /// The sender, the title and the date of issue.
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
        let title = text::title(invoice);
        let heading = self.elements.add(None, Tag::Hn(NonZeroU16::MIN, Some(title.clone())));
        let mut right = Column::new(Side::Right(RIGHT), WIDTH - LETTERHEAD_WIDTH - GAP);
        // Aligns its baseline with the name's.
        right.skip(3.0);
        right.write(heading, &title, Style { leading: 21.0, ..self.strong(15.0) });
        let issued = self.elements.add(None, Tag::P);
        right.skip(4.0);
        right.write(issued, &text::day(Day::containing(invoice.issued_at)), self.plain(9.0, Ink::SECOND));
        self.put_columns(vec![left, right]);
        self.layout_rows.push(LayoutRow::space(22.0));
    }

    /// The recipient, the period, the due date and the total.
    fn details(&mut self) {
        let invoice = self.invoice;
        let total = invoice.bill.currency.format_amount(invoice.bill.total);
        let period = format!("Text generation,\n{} (UTC)", text::month(invoice.month));
        let when = match &invoice.kind {
            InvoiceKind::Invoice => ("Due", text::day(invoice.due)),
            InvoiceKind::CreditNote { of, .. } => ("Credits", format!("Invoice {of}")),
        };
        let label = self.plain(8.0, Ink::SECOND);
        let (value, strong) = (self.plain(9.5, Ink::FIRST), self.strong(9.5));
        let widest = |text: &str, style: Style<'_>, min_width: f32| {
            style.face.width(text, style.size).max(min_width) + 1.0
        };
        let amount_width = widest(&total, strong, 78.0);
        let when_width = widest(&when.1, value, 84.0);
        let period_width = 116.0;
        let to_width = (WIDTH - amount_width - when_width - period_width - 3.0 * GAP).max(80.0);

        self.layout_rows.push(LayoutRow::rule(0.5, Ink::HAIRLINE));
        self.layout_rows.push(LayoutRow::space(12.0));
        let mut columns = Vec::new();
        let mut x = LEFT;
        let buyer = &invoice.buyer;
        let to = vec![
            (buyer.name.as_str(), strong),
            (buyer.address.as_str(), value),
            (buyer.email.as_str(), value),
        ];
        let parts = [
            ("To", to, to_width),
            ("For", vec![(period.as_str(), value)], period_width),
            (when.0, vec![(when.1.as_str(), value)], when_width),
        ];
        for (name, values, width) in parts {
            let mut column = Column::new(Side::Left(x), width);
            self.write_detail(&mut column, name, label, &values);
            columns.push(column);
            x += width + GAP;
        }
        let mut amount = Column::new(Side::Right(RIGHT), amount_width);
        self.write_detail(&mut amount, text::amount(&invoice.kind), label, &[(&total, strong)]);
        columns.push(amount);
        self.put_columns(columns);
        self.layout_rows.push(LayoutRow::space(14.0));
        self.layout_rows.push(LayoutRow::rule(0.5, Ink::HAIRLINE));
    }

    fn write_detail(
        &mut self,
        column: &mut Column<'a>,
        name: &str,
        label: Style<'a>,
        values: &[(&str, Style<'a>)],
    ) {
        let detail = self.elements.add(None, Tag::Div);
        let element = self.elements.add(Some(detail), Tag::P);
        column.write(element, name, label);
        column.skip(1.5);
        for (text, style) in values.iter().filter(|(text, _)| !text.trim().is_empty()) {
            let element = self.elements.add(Some(detail), Tag::P);
            column.write(element, text, *style);
        }
    }

    fn reason(&mut self) {
        let InvoiceKind::CreditNote { of, reason } = &self.invoice.kind else { return };
        let element = self.elements.add(None, Tag::P);
        let mut column = Column::new(Side::Left(LEFT), WIDTH);
        column.write(
            element,
            &format!("{}: {reason}", text::credit_reason_heading(*of)),
            self.plain(9.5, Ink::FIRST),
        );
        self.layout_rows.push(LayoutRow::space(12.0));
        self.put_columns(vec![column]);
    }

    /// Lays out the line items. Returns the header row, which is repeated on every page.
    fn table(&mut self) -> Vec<LayoutRow<'a>> {
        let bill = &self.invoice.bill;
        let rows: Vec<Row> = bill.lines.iter().map(|line| Row::of(line, self.invoice)).collect();
        let headings =
            ["Tokens", "Per million", "Exact", &format!("Amount, {}", bill.currency)].map(str::to_owned);
        let layout = TableLayout::of(&rows, &headings, self.faces);
        let summary = format!("Lines of {}, in {}", text::title(self.invoice), bill.currency);
        let table = self.elements.add(None, Tag::Table.with_summary(Some(summary)));

        self.layout_rows.push(LayoutRow::space(14.0));
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
        // A credit note over part of an invoice has no other lines.
        let has_part = rows.iter().any(|row| row.is_part);
        head_cell(&mut self.elements, Side::Left(LEFT), layout.name_width, text::items_label(bill));
        let first_figure = if has_part { EXACT } else { 0 };
        for (index, text) in headings.iter().enumerate().skip(first_figure) {
            head_cell(&mut self.elements, Side::Right(layout.ends[index]), layout.widths[index], text);
        }
        let mut head = LayoutRow::of_columns(columns.into_iter().flat_map(|column| column.texts).collect());
        head.push(LayoutRow::space(4.0));
        head.push(LayoutRow::rule(0.8, Ink::FIRST));
        head.iter_mut().for_each(|layout_row| layout_row.is_kept_with_next = true);
        self.layout_rows.extend(head.iter().cloned());

        let body = self.elements.add(Some(table), Tag::TBody);
        let last = rows.len().saturating_sub(1);
        for (index, row) in rows.iter().enumerate() {
            self.table_row(row, &layout, body, index == last);
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
        for (index, text) in row.figures.iter().enumerate() {
            // A partial credit has no tokens and no price; its name takes that space.
            let Some(text) = text else { continue };
            let cell = self.elements.add(Some(tag_row), Tag::TD);
            let style = if index == EXACT { second } else { first };
            let end = layout.ends[index] - layout.after_point(index, text);
            let mut column = Column::new(Side::Right(end), layout.widths[index]);
            column.write_line(cell, style.face.line(text), style);
            columns.push(column);
        }
        let mut layout_rows = vec![LayoutRow::space(CELL_PADDING)];
        layout_rows
            .extend(LayoutRow::of_columns(columns.into_iter().flat_map(|column| column.texts).collect()));
        layout_rows.push(LayoutRow::space(CELL_PADDING));
        layout_rows.push(LayoutRow::rule(0.4, Ink::HAIRLINE));
        let end = layout_rows.len() - 1;
        for (index, layout_row) in layout_rows.iter_mut().enumerate() {
            layout_row.is_table_row = true;
            // The sums always share a page with at least one line.
            layout_row.is_kept_with_next = index != end || is_last;
        }
        self.layout_rows.extend(layout_rows);
    }

    fn sums(&mut self) {
        let bill = &self.invoice.bill;
        let currency = &bill.currency;
        let (plain, strong) = (self.plain(9.5, Ink::FIRST), self.strong(11.0));
        let mut rows = vec![("Subtotal".to_owned(), currency.figures(bill.subtotal), plain)];
        if let Some(tax) = &bill.tax {
            rows.push((text::tax(tax), currency.figures(tax.amount), plain));
        }
        rows.push(("Total".to_owned(), currency.format_amount(bill.total), strong));
        let summary = format!("Totals of {}", text::title(self.invoice));
        let table = self.elements.add(None, Tag::Table.with_summary(Some(summary)));
        let body = self.elements.add(Some(table), Tag::TBody);
        let last = rows.len() - 1;
        let mut layout_rows = vec![LayoutRow::space(10.0)];
        for (index, (name, value, style)) in rows.into_iter().enumerate() {
            let row = self.elements.add(Some(body), Tag::TR);
            let name_cell = self.elements.add(Some(row), Tag::TH(TableHeaderScope::Row));
            let value_cell = self.elements.add(Some(row), Tag::TD);
            let value_width = style.face.width(&value, style.size) + 1.0;
            let start = (RIGHT - SUMS_WIDTH).min(RIGHT - value_width - GAP - 80.0).max(LEFT);
            let mut label = Column::new(Side::Left(start), RIGHT - start - value_width - GAP);
            label.write(name_cell, &name, style);
            let mut amount = Column::new(Side::Right(RIGHT), value_width);
            amount.write(value_cell, &value, style);
            if index == last {
                let rule = Rule { from: start, to: RIGHT, top: 4.0, width: 0.8, color: Ink::FIRST };
                layout_rows.push(LayoutRow { height: 9.0, rules: vec![rule], ..LayoutRow::default() });
            }
            layout_rows.extend(LayoutRow::of_columns(label.texts.into_iter().chain(amount.texts).collect()));
            layout_rows.push(LayoutRow::space(2.0));
        }
        let end = layout_rows.len() - 1;
        layout_rows
            .iter_mut()
            .enumerate()
            .for_each(|(index, layout_row)| layout_row.is_kept_with_next = index != end);
        self.layout_rows.extend(layout_rows);
    }

    /// Payment instructions, and how the figures are calculated.
    fn foot(&mut self) {
        let column_width = (WIDTH - 2.0 * GAP) / 2.0;
        let mut columns = Vec::new();
        let mut x = LEFT;
        for text::Paragraph { heading, text } in text::foot(self.invoice, Some(self.invoice.number)) {
            let level = NonZeroU16::MIN.saturating_add(1);
            let title = self.elements.add(None, Tag::Hn(level, Some(heading.to_owned())));
            let body = self.elements.add(None, Tag::P);
            let mut column = Column::new(Side::Left(x), column_width);
            column.write(title, heading, self.strong(9.0));
            column.skip(2.0);
            column.write(body, &text, self.plain(8.5, Ink::FIRST));
            columns.push(column);
            x += column_width + 2.0 * GAP;
        }
        self.layout_rows.push(LayoutRow { is_kept_with_next: true, ..LayoutRow::space(26.0) });
        self.layout_rows.push(LayoutRow { is_kept_with_next: true, ..LayoutRow::rule(0.5, Ink::HAIRLINE) });
        self.layout_rows.push(LayoutRow { is_kept_with_next: true, ..LayoutRow::space(12.0) });
        self.put_columns(columns);
    }

    fn put_columns(&mut self, columns: Vec<Column<'a>>) {
        self.layout_rows
            .extend(LayoutRow::of_columns(columns.into_iter().flat_map(|column| column.texts).collect()));
    }
}

/// Texts stacked vertically, aligned to one side.
pub struct Column<'a> {
    side: Side,
    width: f32,
    bottom: f32,
    pub texts: Vec<Text<'a>>,
}

impl<'a> Column<'a> {
    pub fn new(side: Side, width: f32) -> Self {
        Self { side, width, bottom: 0.0, texts: Vec::new() }
    }

    pub fn skip(&mut self, height: f32) {
        self.bottom += height;
    }

    pub fn write(&mut self, element: ElementId, text: &str, style: Style<'a>) {
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

/// Index of the exact amount in `Row::figures`.
const EXACT: usize = 2;

/// A line item as formatted text.
struct Row {
    name: String,
    is_part: bool,
    /// Tokens, price per million, exact amount, amount.
    figures: [Option<String>; 4],
}

impl Row {
    fn of(line: &InvoiceLine, invoice: &Invoice) -> Self {
        let currency = &invoice.bill.currency;
        let exact = Some(line.exact.figures());
        let amount = Some(currency.figures(line.amount));
        let name = text::item(&line.item, &invoice.kind);
        match &line.item {
            LineItem::Tokens { tokens, price, .. } => Self {
                name,
                is_part: false,
                figures: [Some(group_thousands(*tokens)), Some(price.to_string()), exact, amount],
            },
            LineItem::Part => Self { name, is_part: true, figures: [None, None, exact, amount] },
        }
    }
}

/// Column positions and font size of the table.
struct TableLayout<'a> {
    size: f32,
    face: &'a Typeface,
    name_width: f32,
    widths: [f32; 4],
    /// Right edges of the columns.
    ends: [f32; 4],
    /// For each column, the width of its longest fraction (digits after the decimal point), in em.
    longest_fractions_em: [f32; 4],
}

impl<'a> TableLayout<'a> {
    fn of(rows: &[Row], headings: &[String; 4], faces: &'a Typefaces) -> Self {
        let mut layout = Self::at_size(TABLE_SIZES[0], rows, headings, &faces.sans);
        for size in TABLE_SIZES {
            layout = Self::at_size(size, rows, headings, &faces.sans);
            if layout.name_width >= MIN_NAME_WIDTH {
                break;
            }
        }
        layout
    }

    fn at_size(size: f32, rows: &[Row], headings: &[String; 4], face: &'a Typeface) -> Self {
        let longest_em = |index: usize, part: fn(&str) -> &str| {
            let figures = rows.iter().filter_map(|row| row.figures[index].as_deref());
            figures.map(|text| face.line(part(text)).width_em).fold(0.0_f32, f32::max)
        };
        let indexes = [0, 1, 2, 3];
        let longest_fractions_em = indexes.map(|index| longest_em(index, fraction));
        let widths = indexes.map(|index| {
            let figures_em = longest_em(index, whole) + longest_fractions_em[index];
            (figures_em * size).max(face.width(&headings[index], size - 1.0)) + 1.0
        });
        let gap = GAP * size / TABLE_SIZES[0];
        let mut ends = [RIGHT; 4];
        for index in (0..3).rev() {
            ends[index] = ends[index + 1] - widths[index + 1] - gap;
        }
        let name_width = ends[0] - widths[0] - gap - LEFT;
        Self { size, face, name_width, widths, ends, longest_fractions_em }
    }

    /// The figure's distance from the right edge of its column, which aligns the decimal points.
    fn after_point(&self, index: usize, figure: &str) -> f32 {
        (self.longest_fractions_em[index] - self.face.line(fraction(figure)).width_em) * self.size
    }
}

/// The digits after the decimal point.
fn fraction(figure: &str) -> &str {
    figure.split_once('.').map_or("", |(_, fraction)| fraction)
}

/// The figure up to and including the decimal point.
fn whole(figure: &str) -> &str {
    &figure[..figure.len() - fraction(figure).len()]
}
