//! Pagination. A document is a list of full-width strips, which are stacked onto pages. Strips that are marked to stay together
//! do, unless they are longer than a page. Every text belongs to an element of the structure tree, which screen readers read;
//! purely visual text is an artifact and belongs to none.

use super::typeface::{Line, Typeface};
use krilla::Document;
use krilla::color::rgb;
use krilla::geom::{PathBuilder, Point};
use krilla::num::NormalizedF32;
use krilla::page::PageSettings;
use krilla::paint::{Fill, Paint, Stroke};
use krilla::surface::Surface;
use krilla::tagging::{Artifact, ArtifactType, ContentTag, Identifier, SpanTag, TagGroup, TagKind, TagTree};

/// A4, in points.
const PAGE_WIDTH: f32 = 595.28;
const PAGE_HEIGHT: f32 = 841.89;
const MARGIN: f32 = 56.7;
const TOP: f32 = 56.7;
const BOTTOM: f32 = PAGE_HEIGHT - 64.0;
pub const LEFT: f32 = MARGIN;
pub const RIGHT: f32 = PAGE_WIDTH - MARGIN;
pub const WIDTH: f32 = RIGHT - LEFT;
const FOOT_BASELINE: f32 = PAGE_HEIGHT - 36.0;
const RUNNING_SIZE: f32 = 8.0;
/// Distance from the running head of a later page to the content below it.
const RUNNING_HEAD_HEIGHT: f32 = 30.0;

/// Red, green and blue.
#[derive(Clone, Copy)]
pub struct Ink(u8, u8, u8);

impl Ink {
    pub const FIRST: Self = Self(0x1d, 0x1c, 0x19);
    /// Secondary text: headings, dates, notes.
    pub const SECOND: Self = Self(0x60, 0x5c, 0x54);
    pub const HAIRLINE: Self = Self(0xd6, 0xd2, 0xc8);

    fn paint(self) -> Paint {
        rgb::Color::new(self.0, self.1, self.2).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ElementId(usize);

struct Element {
    tag: TagKind,
    parent: Option<ElementId>,
    content: Vec<Identifier>,
}

/// The structure tree of a document, in reading order.
#[derive(Default)]
pub struct Elements(Vec<Element>);

impl Elements {
    pub fn add(&mut self, parent: Option<ElementId>, tag: impl Into<TagKind>) -> ElementId {
        self.0.push(Element { tag: tag.into(), parent, content: Vec::new() });
        ElementId(self.0.len() - 1)
    }

    fn into_tree(self) -> TagTree {
        let mut tree = TagTree::new();
        let mut children = vec![Vec::new(); self.0.len()];
        let mut top = Vec::new();
        for (index, element) in self.0.iter().enumerate() {
            match element.parent {
                Some(ElementId(parent)) => children[parent].push(index),
                None => top.push(index),
            }
        }
        top.into_iter().for_each(|index| tree.push(self.group(index, &children)));
        tree
    }

    fn group(&self, index: usize, children: &[Vec<usize>]) -> TagGroup {
        let Element { tag, content, .. } = &self.0[index];
        let mut group = TagGroup::new(tag.clone());
        content.iter().for_each(|identifier| group.push(*identifier));
        children[index].iter().for_each(|child| group.push(self.group(*child, children)));
        group
    }
}

#[derive(Clone, Copy)]
pub struct Style<'a> {
    pub face: &'a Typeface,
    pub size: f32,
    /// Distance between baselines.
    pub leading: f32,
    pub color: Ink,
}

/// One line of text, positioned in a strip.
#[derive(Clone)]
pub struct Text<'a> {
    /// `None` for purely visual text.
    pub element: Option<ElementId>,
    pub x: f32,
    /// Distance from the top of the strip to the top of the line.
    pub top: f32,
    pub line: Line,
    pub style: Style<'a>,
}

impl Text<'_> {
    fn bottom(&self) -> f32 {
        self.top + self.style.leading
    }

    /// Distance from the top of the strip.
    fn baseline(&self) -> f32 {
        // Descenders take about a fifth of the font size. The remaining leading is split evenly above and below.
        self.top + self.style.leading / 2.0 + self.style.size * 0.35
    }
}

#[derive(Clone, Copy)]
pub struct Rule {
    pub from: f32,
    pub to: f32,
    /// Distance from the top of the strip.
    pub top: f32,
    pub width: f32,
    pub color: Ink,
}

#[derive(Clone, Default)]
pub struct LayoutRow<'a> {
    pub height: f32,
    pub texts: Vec<Text<'a>>,
    pub rules: Vec<Rule>,
    /// Stays on the same page as the strip after it.
    pub is_kept_with_next: bool,
    /// Part of the table: if it begins a page, the table head is repeated above it.
    pub is_table_row: bool,
}

impl<'a> LayoutRow<'a> {
    pub fn space(height: f32) -> Self {
        Self { height, ..Self::default() }
    }

    pub fn rule(width: f32, color: Ink) -> Self {
        let rule = Rule { from: LEFT, to: RIGHT, top: 0.0, width, color };
        Self { height: 0.0, rules: vec![rule], ..Self::default() }
    }

    fn is_space(&self) -> bool {
        self.texts.is_empty() && self.rules.is_empty()
    }

    /// Splits columns that stand side by side into strips wherever no line is cut, and keeps the strips together.
    pub fn of_columns(mut texts: Vec<Text<'a>>) -> Vec<Self> {
        texts.sort_by(|a, b| a.top.total_cmp(&b.top));
        let mut layout_rows: Vec<Self> = Vec::new();
        let mut row_top = 0.0;
        let mut row_bottom = 0.0_f32;
        for mut text in texts {
            if layout_rows.is_empty() || text.top >= row_bottom - 0.01 {
                row_top = row_bottom;
                layout_rows.push(Self { is_kept_with_next: true, ..Self::default() });
            }
            row_bottom = row_bottom.max(text.bottom());
            if let Some(layout_row) = layout_rows.last_mut() {
                text.top -= row_top;
                layout_row.height = row_bottom - row_top;
                layout_row.texts.push(text);
            }
        }
        if let Some(last) = layout_rows.last_mut() {
            last.is_kept_with_next = false;
        }
        layout_rows
    }
}

/// Running head and foot of the pages; purely visual.
pub struct RunningHeader<'a> {
    pub face: &'a Typeface,
    /// "Invoice 2026-0031, Marlow & Finch".
    pub text: String,
    /// The table head, repeated on pages that begin within the table.
    pub table_head: Vec<LayoutRow<'a>>,
}

pub struct Page<'a> {
    /// Each strip with the y of its top.
    layout_rows: Vec<(f32, LayoutRow<'a>)>,
    bottom: f32,
}

impl Page<'_> {
    fn new(top: f32) -> Self {
        Self { layout_rows: Vec::new(), bottom: top }
    }
}

impl<'a> Page<'a> {
    fn put(&mut self, layout_row: LayoutRow<'a>) {
        let top = self.bottom;
        self.bottom += layout_row.height;
        self.layout_rows.push((top, layout_row));
    }
}

pub fn paginate<'a>(layout_rows: Vec<LayoutRow<'a>>, table_head: &[LayoutRow<'a>]) -> Vec<Page<'a>> {
    let later_top = TOP + RUNNING_HEAD_HEIGHT;
    let head_height: f32 = table_head.iter().map(|layout_row| layout_row.height).sum();
    let mut pages = Vec::new();
    let mut page = Page::new(TOP);
    let mut layout_rows = layout_rows.into_iter();
    while let Some(first) = layout_rows.next() {
        let mut group = vec![first];
        while group.last().is_some_and(|last| last.is_kept_with_next) {
            match layout_rows.next() {
                Some(next) => group.push(next),
                None => break,
            }
        }
        let height: f32 = group.iter().map(|layout_row| layout_row.height).sum();
        let fits_a_page = height <= BOTTOM - later_top - head_height;
        let is_to_begin_a_page = !page.layout_rows.is_empty() && page.bottom + height > BOTTOM;
        if is_to_begin_a_page && fits_a_page {
            pages.push(std::mem::replace(&mut page, continued_page(&group[0], later_top, table_head)));
        }
        for layout_row in group {
            let is_full = page.bottom + layout_row.height > BOTTOM && !page.layout_rows.is_empty();
            if is_full && !layout_row.is_space() {
                pages.push(std::mem::replace(&mut page, continued_page(&layout_row, later_top, table_head)));
            }
            let begins_a_page = page.layout_rows.is_empty();
            if !(layout_row.is_space() && begins_a_page) {
                page.put(layout_row);
            }
        }
    }
    pages.push(page);
    pages
}

fn continued_page<'a>(first: &LayoutRow<'a>, top: f32, table_head: &[LayoutRow<'a>]) -> Page<'a> {
    let mut page = Page::new(top);
    if first.is_table_row {
        for layout_row in table_head {
            let mut layout_row = layout_row.clone();
            layout_row.texts.iter_mut().for_each(|text| text.element = None);
            page.put(layout_row);
        }
    }
    page
}

/// Draws all pages and adds the structure tree.
pub fn draw(
    document: &mut Document,
    layout_rows: Vec<LayoutRow<'_>>,
    mut elements: Elements,
    running: &RunningHeader<'_>,
) -> Result<(), String> {
    let pages = paginate(layout_rows, &running.table_head);
    let count = pages.len();
    let size = PageSettings::from_wh(PAGE_WIDTH, PAGE_HEIGHT).ok_or("invalid page size")?;
    for (index, page) in pages.into_iter().enumerate() {
        let mut pdf_page = document.start_page_with(size.clone());
        let mut surface = pdf_page.surface();
        let mut texts = Vec::new();
        surface.start_tagged(ContentTag::Artifact(Artifact::with_kind(ArtifactType::Layout)));
        for (top, layout_row) in page.layout_rows {
            layout_row.rules.iter().for_each(|rule| draw_rule(&mut surface, rule, top));
            texts.extend(layout_row.texts.into_iter().map(|text| (top, text)));
        }
        surface.end_tagged();
        // In reading order, for programs that ignore the structure tree: strips contain columns side by side.
        texts.sort_by_key(|(_, text)| text.element);
        for (top, text) in &texts {
            let tag = match text.element {
                Some(_) => {
                    ContentTag::Span(SpanTag::empty().with_actual_text(text.line.source_text.as_deref()))
                }
                None => ContentTag::Artifact(Artifact::with_kind(ArtifactType::PaginationOther)),
            };
            let identifier = surface.start_tagged(tag);
            let at = Point::from_xy(text.x, top + text.baseline());
            draw_line(&mut surface, &text.line, &text.style, at);
            surface.end_tagged();
            if let Some(ElementId(id)) = text.element {
                elements.0[id].content.push(identifier);
            }
        }
        if count > 1 {
            draw_running(&mut surface, running, index, count);
        }
        surface.finish();
        pdf_page.finish();
    }
    document.set_tag_tree(elements.into_tree());
    Ok(())
}

fn draw_running(surface: &mut Surface<'_>, running: &RunningHeader<'_>, index: usize, count: usize) {
    let RunningHeader { face, text, .. } = running;
    let style = Style { face, size: RUNNING_SIZE, leading: RUNNING_SIZE, color: Ink::SECOND };
    let number = face.line(&format!("Page {} of {count}", index + 1));
    let title_width = WIDTH - number.width_em * RUNNING_SIZE - 24.0;
    // A long name is in full on the first page; here its first line is enough.
    let title = face.wrapped(text, RUNNING_SIZE, title_width).into_iter().next();
    surface.start_tagged(ContentTag::Artifact(Artifact::with_kind(ArtifactType::PageNumber)));
    let at = Point::from_xy(RIGHT - number.width_em * RUNNING_SIZE, FOOT_BASELINE);
    draw_line(surface, &number, &style, at);
    surface.end_tagged();
    let (kind, baseline) = match index {
        0 => (ArtifactType::Footer, FOOT_BASELINE),
        _ => (ArtifactType::Header, TOP + RUNNING_SIZE),
    };
    if let Some(title) = title {
        surface.start_tagged(ContentTag::Artifact(Artifact::with_kind(kind)));
        draw_line(surface, &title, &style, Point::from_xy(LEFT, baseline));
        surface.end_tagged();
    }
}

fn draw_line(surface: &mut Surface<'_>, line: &Line, style: &Style<'_>, at: Point) {
    surface.set_stroke(None);
    surface.set_fill(Some(Fill {
        paint: style.color.paint(),
        opacity: NormalizedF32::ONE,
        rule: Default::default(),
    }));
    for run in &line.runs {
        let start = Point::from_xy(at.x + run.offset_em * style.size, at.y);
        surface.draw_glyphs(start, &run.glyphs, style.face.font(run.font), &line.text, style.size, false);
    }
}

fn draw_rule(surface: &mut Surface<'_>, rule: &Rule, row_top: f32) {
    let y = row_top + rule.top;
    let mut path = PathBuilder::new();
    path.move_to(rule.from, y);
    path.line_to(rule.to, y);
    if let Some(path) = path.finish() {
        surface.set_fill(None);
        surface.set_stroke(Some(Stroke {
            paint: rule.color.paint(),
            width: rule.width,
            ..Stroke::default()
        }));
        surface.draw_path(&path);
    }
}

/// A line with its position on the page.
#[cfg(test)]
#[derive(Debug)]
pub struct PlacedText {
    pub text: String,
    pub left: f32,
    pub right: f32,
    pub top: f32,
    pub bottom: f32,
}

/// The lines of a page, in reading order.
#[cfg(test)]
pub fn placed(page: &Page<'_>) -> Vec<PlacedText> {
    let texts = page
        .layout_rows
        .iter()
        .flat_map(|(top, layout_row)| layout_row.texts.iter().map(move |text| (*top, text)));
    let mut texts: Vec<_> = texts.collect();
    texts.sort_by_key(|(_, text)| text.element);
    let placed_text = |(top, text): (f32, &Text<'_>)| PlacedText {
        text: text.line.source_text.clone().unwrap_or_else(|| text.line.text.clone()),
        left: text.x,
        right: text.x + text.line.width_em * text.style.size,
        top: top + text.top,
        bottom: top + text.bottom(),
    };
    texts.into_iter().map(placed_text).collect()
}
