//! Replaces a section between its two markers in a page and leaves the rest unchanged.

use crate::Outcome;

/// The page with all results.
pub const RESULTS: &str = "bench/RESULTS.md";

/// `name` is the section's name in its markers, such as `bench-gateway`.
pub fn put(path: &str, name: &str, section: &str) -> Outcome<()> {
    let page = std::fs::read_to_string(path)?;
    let page = replaced(&page, name, section)
        .ok_or_else(|| format!("{path} lacks the markers of the section: {}", markers(name).join(" … ")))?;
    Ok(std::fs::write(path, page)?)
}

fn markers(name: &str) -> [String; 2] {
    [
        format!("<!-- {name}: begin (written by the benchmark; do not edit) -->"),
        format!("<!-- {name}: end -->"),
    ]
}

fn replaced(page: &str, name: &str, section: &str) -> Option<String> {
    let [begin, end] = markers(name);
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", section.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_sections_markers_changes() {
        let [begin, end] = markers("one");
        let [other_begin, other_end] = markers("one more");
        let page = format!("before\n{begin}\nold\n{end}\n{other_begin}\nold\n{other_end}\nafter\n");
        let new = format!("{begin}\n\nnew\n\n{end}");
        assert_eq!(
            replaced(&page, "one", "new").unwrap(),
            page.replace(&format!("{begin}\nold\n{end}"), &new)
        );
        let new = format!("{other_begin}\n\nnew\n\n{other_end}");
        assert_eq!(
            replaced(&page, "one more", "new").unwrap(),
            page.replace(&format!("{other_begin}\nold\n{other_end}"), &new)
        );
        assert_eq!(replaced("no markers", "one", "new"), None);
    }

    #[test]
    fn results_page_has_markers_for_every_benchmark_that_writes_it() {
        let page = include_str!("../RESULTS.md");
        let sections = [
            "bench-engine",
            "bench-engine qwen2.5-coder-0.5b",
            "bench-engine qwen2.5-coder-1.5b",
            "bench-gateway",
            "bench-gpu",
        ];
        for name in sections {
            assert!(replaced(page, name, "new").is_some(), "{name}");
        }
    }
}
