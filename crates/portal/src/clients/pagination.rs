//! Which pages of a list are offered: the first, the last, and those around the one that is shown.

use std::collections::BTreeSet;

/// So many on either side of the one that is shown.
const NEIGHBOURS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageLink {
    Page(u32),
    /// Some are left out here.
    Gap,
}

pub(crate) fn page_links(shown: u32, last: u32) -> Vec<PageLink> {
    let around = shown.saturating_sub(NEIGHBOURS)..=shown.saturating_add(NEIGHBOURS);
    let pages: BTreeSet<u32> = around.filter(|page| (1..=last).contains(page)).chain([1, last]).collect();
    let mut links = Vec::new();
    let mut before = 0;
    for page in pages {
        match page - before {
            1 => {}
            // A gap of one takes as much room as the page that it hides.
            2 => links.push(PageLink::Page(page - 1)),
            _ => links.push(PageLink::Gap),
        }
        links.push(PageLink::Page(page));
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
            let links = page_links(shown, last).into_iter().map(|link| match link {
                PageLink::Page(page) => page.to_string(),
                PageLink::Gap => "…".to_owned(),
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
