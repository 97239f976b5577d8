//! The pages of a list: which one an address asks for, and which are offered on it: the first, the last, and those around it.

use std::collections::BTreeSet;

/// So many on either side of the one that is shown.
const NEIGHBOURS: u32 = 2;
/// Pages past this one are as empty as this one.
pub const MAX_PAGE: u32 = 1_000_000;

/// What a list offers below its rows.
#[derive(Clone, Debug)]
pub struct Pagination {
    pub shown: u32,
    pub count: u32,
    /// Rows on all pages.
    pub total: u64,
    /// The first and the last row on this page, counted from 1.
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
        is_shown: bool,
    },
    /// Some are left out here.
    Gap,
}

impl Pagination {
    /// `rows` are on the page that is shown; `href` is the address of a page.
    pub fn new(shown: u32, per_page: u32, total: u64, rows: usize, href: impl Fn(u32) -> String) -> Self {
        let count = page_count(total, per_page);
        let before = u64::from(shown.saturating_sub(1)) * u64::from(per_page);
        let link = |number: Option<u32>| match number {
            Some(number) => PageLink::Page { number, href: href(number), is_shown: number == shown },
            None => PageLink::Gap,
        };
        Self {
            shown,
            count,
            total,
            first: before + 1,
            last: before.saturating_add(u64::try_from(rows).unwrap_or(u64::MAX)),
            links: offered(shown, count).into_iter().map(link).collect(),
            previous: (shown > 1 && shown <= count).then(|| href(shown - 1)),
            next: (shown < count).then(|| href(shown + 1)),
            last_page: href(count),
        }
    }
}

/// A list without rows has one page, which is empty.
pub fn page_count(total: u64, per_page: u32) -> u32 {
    u32::try_from(total.div_ceil(u64::from(per_page)).max(1)).unwrap_or(u32::MAX)
}

/// The number in `page=`, from 1 on.
pub fn parse_page(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let page = if is_number { text.parse().unwrap_or(MAX_PAGE) } else { 0 };
    (page > 0).then_some(page.min(MAX_PAGE))
}

/// None: some are left out here.
fn offered(shown: u32, last: u32) -> Vec<Option<u32>> {
    let around = shown.saturating_sub(NEIGHBOURS)..=shown.saturating_add(NEIGHBOURS);
    let pages: BTreeSet<u32> = around.filter(|page| (1..=last).contains(page)).chain([1, last]).collect();
    let mut links = Vec::new();
    let mut before = 0;
    for page in pages {
        match page - before {
            1 => {}
            // A gap of one takes as much room as the page that it hides.
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
    fn the_first_the_last_and_the_neighbours_are_offered() {
        let written = |shown, last| {
            let links = offered(shown, last).into_iter().map(|link| match link {
                Some(page) => page.to_string(),
                None => "…".to_owned(),
            });
            links.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(written(1, 1), "1");
        assert_eq!(written(1, 3), "1 2 3");
        assert_eq!(written(5, 9), "1 2 3 4 5 6 7 8 9");
        assert_eq!(written(6, 20), "1 … 4 5 6 7 8 … 20");
        assert_eq!(written(4_000, 4_000), "1 … 3998 3999 4000");
        assert_eq!(written(99, 3), "1 2 3");
    }
}
