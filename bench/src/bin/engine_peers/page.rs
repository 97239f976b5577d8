//! Replaces the section between two markers in a page and leaves the rest unchanged.

use crate::Outcome;

const BEGIN: &str = "<!-- bench-engine: begin (written by the benchmark; do not edit) -->";
const END: &str = "<!-- bench-engine: end -->";

pub fn put(path: &str, section: &str) -> Outcome<()> {
    let page = std::fs::read_to_string(path)?;
    let page = replaced(&page, section).ok_or_else(|| format!("{path} lacks the marks of the section"))?;
    Ok(std::fs::write(path, page)?)
}

fn replaced(page: &str, section: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", section.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_markers_changes() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        assert_eq!(replaced(&page, "new").unwrap(), format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replaced("no marks", "new"), None);
    }
}
