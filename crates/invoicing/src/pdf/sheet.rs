//! Pages from strips. A document is a list of strips that run over the whole width; they are put on pages one below the other, and
//! what is said to stay together does, unless it is longer than a page. Every text belongs to an element of the document's
//! structure, which is what screen readers read; what is on the page for the eye alone belongs to none.

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
/// From the running head of a later page to what follows it.
const RUNNING_HEAD_HEIGHT: f32 = 30.0;

/// Red, green and blue.
#[derive(Clone, Copy)]
pub struct Ink(u8, u8, u8);

impl Ink {
    pub const FIRST: Self = Self(0x1d, 0x1c, 0x19);
    /// For heads, days and whatever else is said on the side.
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

/// The structure of a document, in reading order.
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
        for (place, element) in self.0.iter().enumerate() {
            match element.parent {
                Some(ElementId(parent)) => children[parent].push(place),
                None => top.push(place),
            }
        }
        top.into_iter().for_each(|place| tree.push(self.group(place, &children)));
        tree
    }

    fn group(&self, place: usize, children: &[Vec<usize>]) -> TagGroup {
        let Element { tag, content, .. } = &self.0[place];
        let mut group = TagGroup::new(tag.clone());
        content.iter().for_each(|identifier| group.push(*identifier));
        children[place].iter().for_each(|child| group.push(self.group(*child, children)));
        group
    }
}

/// How a text looks.
#[derive(Clone, Copy)]
pub struct Style<'a> {
    pub face: &'a Typeface,
    pub size: f32,
    /// From one line to the next.
    pub leading: f32,
    pub color: Ink,
}

/// One line of text at its place in a strip.
#[derive(Clone)]
pub struct Text<'a> {
    /// None: for the eye alone.
    pub element: Option<ElementId>,
    pub x: f32,
    /// From the top of the strip to that of the line.
    pub top: f32,
    pub line: Line,
    pub style: Style<'a>,
}

impl Text<'_> {
    fn bottom(&self) -> f32 {
        self.top + self.style.leading
    }

    /// From the top of the strip.
    fn baseline(&self) -> f32 {
        // Letters stand on it with about a fifth of their size below it; what is left of the line is parted above and below.
        self.top + self.style.leading / 2.0 + self.style.size * 0.35
    }
}

#[derive(Clone, Copy)]
pub struct Rule {
    pub from: f32,
    pub to: f32,
    /// From the top of the strip.
    pub top: f32,
    pub width: f32,
    pub color: Ink,
}

#[derive(Clone, Default)]
pub struct Strip<'a> {
    pub height: f32,
    pub texts: Vec<Text<'a>>,
    pub rules: Vec<Rule>,
    /// Stays on the same page as the strip after it.
    pub is_kept_with_next: bool,
    /// Is of the table, whose head is repeated above it where it begins a page.
    pub is_of_table: bool,
}

impl<'a> Strip<'a> {
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

    /// Columns side by side as strips: cut wherever no line is in the way, and kept together.
    pub fn of_columns(mut texts: Vec<Text<'a>>) -> Vec<Self> {
        texts.sort_by(|a, b| a.top.total_cmp(&b.top));
        let mut strips: Vec<Self> = Vec::new();
        let mut strip_top = 0.0;
        let mut strip_bottom = 0.0_f32;
        for mut text in texts {
            if strips.is_empty() || text.top >= strip_bottom - 0.01 {
                strip_top = strip_bottom;
                strips.push(Self { is_kept_with_next: true, ..Self::default() });
            }
            strip_bottom = strip_bottom.max(text.bottom());
            if let Some(strip) = strips.last_mut() {
                text.top -= strip_top;
                strip.height = strip_bottom - strip_top;
                strip.texts.push(text);
            }
        }
        if let Some(last) = strips.last_mut() {
            last.is_kept_with_next = false;
        }
        strips
    }
}

/// What stands at the top and foot of pages, for the eye.
pub struct Running<'a> {
    pub face: &'a Typeface,
    /// "Invoice 2026-0031, Marlow & Finch".
    pub text: String,
    /// The head of the table, repeated on pages that begin within it.
    pub table_head: Vec<Strip<'a>>,
}

pub struct Page<'a> {
    /// With the place of each strip's top.
    strips: Vec<(f32, Strip<'a>)>,
    bottom: f32,
}

impl Page<'_> {
    fn new(top: f32) -> Self {
        Self { strips: Vec::new(), bottom: top }
    }
}

impl<'a> Page<'a> {
    fn put(&mut self, strip: Strip<'a>) {
        let top = self.bottom;
        self.bottom += strip.height;
        self.strips.push((top, strip));
    }
}

pub fn onto_pages<'a>(strips: Vec<Strip<'a>>, table_head: &[Strip<'a>]) -> Vec<Page<'a>> {
    let later_top = TOP + RUNNING_HEAD_HEIGHT;
    let head_height: f32 = table_head.iter().map(|strip| strip.height).sum();
    let mut pages = Vec::new();
    let mut page = Page::new(TOP);
    let mut strips = strips.into_iter();
    while let Some(first) = strips.next() {
        let mut group = vec![first];
        while group.last().is_some_and(|last| last.is_kept_with_next) {
            match strips.next() {
                Some(next) => group.push(next),
                None => break,
            }
        }
        let height: f32 = group.iter().map(|strip| strip.height).sum();
        let fits_a_page = height <= BOTTOM - later_top - head_height;
        let is_to_begin_a_page = !page.strips.is_empty() && page.bottom + height > BOTTOM;
        if is_to_begin_a_page && fits_a_page {
            pages.push(std::mem::replace(&mut page, begun(&group[0], later_top, table_head)));
        }
        for strip in group {
            let is_full = page.bottom + strip.height > BOTTOM && !page.strips.is_empty();
            if is_full && !strip.is_space() {
                pages.push(std::mem::replace(&mut page, begun(&strip, later_top, table_head)));
            }
            let begins_a_page = page.strips.is_empty();
            if !(strip.is_space() && begins_a_page) {
                page.put(strip);
            }
        }
    }
    pages.push(page);
    pages
}

fn begun<'a>(first: &Strip<'a>, top: f32, table_head: &[Strip<'a>]) -> Page<'a> {
    let mut page = Page::new(top);
    if first.is_of_table {
        for strip in table_head {
            let mut strip = strip.clone();
            strip.texts.iter_mut().for_each(|text| text.element = None);
            page.put(strip);
        }
    }
    page
}

/// Draws everything, and gives the document its structure.
pub fn draw(
    document: &mut Document,
    strips: Vec<Strip<'_>>,
    mut elements: Elements,
    running: &Running<'_>,
) -> Result<(), String> {
    let pages = onto_pages(strips, &running.table_head);
    let count = pages.len();
    let size = PageSettings::from_wh(PAGE_WIDTH, PAGE_HEIGHT).ok_or("A4 is no size of a page")?;
    for (index, page) in pages.into_iter().enumerate() {
        let mut sheet = document.start_page_with(size.clone());
        let mut surface = sheet.surface();
        let mut texts = Vec::new();
        surface.start_tagged(ContentTag::Artifact(Artifact::with_kind(ArtifactType::Layout)));
        for (top, strip) in page.strips {
            strip.rules.iter().for_each(|rule| draw_rule(&mut surface, rule, top));
            texts.extend(strip.texts.into_iter().map(|text| (top, text)));
        }
        surface.end_tagged();
        // In reading order, for programs that know nothing of the structure; columns are side by side in strips.
        texts.sort_by_key(|(_, text)| text.element);
        for (top, text) in &texts {
            let tag = match text.element {
                Some(_) => ContentTag::Span(SpanTag::empty().with_actual_text(text.line.meant.as_deref())),
                None => ContentTag::Artifact(Artifact::with_kind(ArtifactType::PaginationOther)),
            };
            let identifier = surface.start_tagged(tag);
            let at = Point::from_xy(text.x, top + text.baseline());
            draw_line(&mut surface, &text.line, &text.style, at);
            surface.end_tagged();
            if let Some(ElementId(place)) = text.element {
                elements.0[place].content.push(identifier);
            }
        }
        if count > 1 {
            draw_running(&mut surface, running, index, count);
        }
        surface.finish();
        sheet.finish();
    }
    document.set_tag_tree(elements.into_tree());
    Ok(())
}

fn draw_running(surface: &mut Surface<'_>, running: &Running<'_>, index: usize, count: usize) {
    let Running { face, text, .. } = running;
    let style = Style { face, size: RUNNING_SIZE, leading: RUNNING_SIZE, color: Ink::SECOND };
    let number = face.line(&format!("Page {} of {count}", index + 1));
    let room = WIDTH - number.width_em * RUNNING_SIZE - 24.0;
    // A long name is carried by the first page; here its beginning is enough.
    let title = face.wrapped(text, RUNNING_SIZE, room).into_iter().next();
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
    surface.draw_glyphs(at, &line.glyphs, style.face.font.clone(), &line.text, style.size, false);
}

fn draw_rule(surface: &mut Surface<'_>, rule: &Rule, strip_top: f32) {
    let y = strip_top + rule.top;
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

/// A line at its place on the page.
#[cfg(test)]
#[derive(Debug)]
pub struct PlacedText {
    pub text: String,
    pub left: f32,
    pub right: f32,
    pub top: f32,
    pub bottom: f32,
}

/// What is on a page, in reading order.
#[cfg(test)]
pub fn placed(page: &Page<'_>) -> Vec<PlacedText> {
    let texts = page.strips.iter().flat_map(|(top, strip)| strip.texts.iter().map(move |text| (*top, text)));
    let mut texts: Vec<_> = texts.collect();
    texts.sort_by_key(|(_, text)| text.element);
    let place = |(top, text): (f32, &Text<'_>)| PlacedText {
        text: text.line.meant.clone().unwrap_or_else(|| text.line.text.clone()),
        left: text.x,
        right: text.x + text.line.width_em * text.style.size,
        top: top + text.top,
        bottom: top + text.bottom(),
    };
    texts.into_iter().map(place).collect()
}
