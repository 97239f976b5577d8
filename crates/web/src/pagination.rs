//! Pagination of lists: parses the page number and offers links to the first page, the last page and those around the current one.

use std::collections::BTreeSet;

/// Number of links on either side of the current page.
const NEIGHBOURS: u32 = 2;
/// Larger page numbers are clamped to this one; no list is that long.
pub const MAX_PAGE: u32 = 1_000_000;

/// Pagination below a list.
#[derive(Clone, Debug)]
pub struct Pagination {
    pub current: u32,
    pub count: u32,
    /// Total rows on all pages.
    pub total: u64,
    /// The first and last row on this page, counted from 1.
    pub first: u64,
    pub last: u64,
    pub links: Vec<PageLink>,
    pub previous: Option<String>,
    pub next: Option<String>,
    pub last_page: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageLink {
    Page {
        number: u32,
        href: String,
        is_current: bool,
    },
    /// Stands for omitted pages.
    Gap,
}

impl Pagination {
    /// `rows` is the number of rows on the current page; `href` returns a page's URL.
    pub fn new(current: u32, per_page: u32, total: u64, rows: usize, href: impl Fn(u32) -> String) -> Self {
        let count = page_count(total, per_page);
        let before = u64::from(current.saturating_sub(1)) * u64::from(per_page);
        let link = |number: Option<u32>| match number {
            Some(number) => PageLink::Page { number, href: href(number), is_current: number == current },
            None => PageLink::Gap,
        };
        Self {
            current,
            count,
            total,
            first: before + 1,
            last: before.saturating_add(u64::try_from(rows).unwrap_or(u64::MAX)),
            links: page_numbers(current, count).into_iter().map(link).collect(),
            previous: (current > 1 && current <= count).then(|| href(current - 1)),
            next: (current < count).then(|| href(current + 1)),
            last_page: href(count),
        }
    }

    /// For a list that goes on behind the pages that are known.
    #[must_use]
    pub fn open_ended(mut self) -> Self {
        self.links.push(PageLink::Gap);
        self
    }
}

/// An empty list has one page.
pub fn page_count(total: u64, per_page: u32) -> u32 {
    u32::try_from(total.div_ceil(u64::from(per_page)).max(1)).unwrap_or(u32::MAX)
}

/// Parses the `page=` parameter. Pages count from 1.
pub fn parse_page(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let page = if is_number { text.parse().unwrap_or(MAX_PAGE) } else { 0 };
    (page > 0).then_some(page.min(MAX_PAGE))
}

/// The page numbers to link to. `None` stands for omitted pages.
fn page_numbers(current: u32, last: u32) -> Vec<Option<u32>> {
    let around = current.saturating_sub(NEIGHBOURS)..=current.saturating_add(NEIGHBOURS);
    let pages: BTreeSet<u32> = around.filter(|page| (1..=last).contains(page)).chain([1, last]).collect();
    let mut links = Vec::new();
    let mut before = 0;
    for page in pages {
        match page - before {
            1 => {}
            // A gap would take as much space as the single page it hides.
            2 => links.push(Some(page - 1)),
            _ => links.push(None),
        }
        links.push(Some(page));
        before = page;
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pagination_links_first_last_and_neighbours() {
        let rendered = |current, last| {
            let links = page_numbers(current, last).into_iter().map(|link| match link {
                Some(page) => page.to_string(),
                None => "…".to_owned(),
            });
            links.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(rendered(1, 1), "1");
        assert_eq!(rendered(1, 3), "1 2 3");
        assert_eq!(rendered(5, 9), "1 2 3 4 5 6 7 8 9");
        assert_eq!(rendered(6, 20), "1 … 4 5 6 7 8 … 20");
        assert_eq!(rendered(4_000, 4_000), "1 … 3998 3999 4000");
        assert_eq!(rendered(99, 3), "1 2 3");
    }

    #[test]
    fn list_with_an_unknown_end_links_on_from_every_known_page() {
        let pages = |current| {
            Pagination::new(current, 25, 1_001, 25, |page| format!("/clients?page={page}")).open_ended()
        };
        assert_eq!(pages(1).links.last(), Some(&PageLink::Gap));
        assert_eq!(pages(40).next.as_deref(), Some("/clients?page=41"));
    }
}
