//! Replaces a model's section between its two markers in a page and leaves the rest unchanged.

use crate::{DEFAULT_MODEL, Outcome};

pub fn put(path: &str, model: &str, section: &str) -> Outcome<()> {
    let page = std::fs::read_to_string(path)?;
    let page = replaced(&page, model, section)
        .ok_or_else(|| format!("{path} lacks the marks of the section: {}", markers(model).join(" … ")))?;
    Ok(std::fs::write(path, page)?)
}

fn markers(model: &str) -> [String; 2] {
    let of_model = if model == DEFAULT_MODEL { String::new() } else { format!(" {model}") };
    [
        format!("<!-- bench-engine{of_model}: begin (written by the benchmark; do not edit) -->"),
        format!("<!-- bench-engine{of_model}: end -->"),
    ]
}

fn replaced(page: &str, model: &str, section: &str) -> Option<String> {
    let [begin, end] = markers(model);
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", section.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_models_markers_changes() {
        let [begin, end] = markers(DEFAULT_MODEL);
        let [other_begin, other_end] = markers("other");
        let page = format!("before\n{begin}\nold\n{end}\n{other_begin}\nold\n{other_end}\nafter\n");
        let new = format!("{begin}\n\nnew\n\n{end}");
        assert_eq!(
            replaced(&page, DEFAULT_MODEL, "new").unwrap(),
            page.replace(&format!("{begin}\nold\n{end}"), &new)
        );
        let new = format!("{other_begin}\n\nnew\n\n{other_end}");
        assert_eq!(
            replaced(&page, "other", "new").unwrap(),
            page.replace(&format!("{other_begin}\nold\n{other_end}"), &new)
        );
        assert_eq!(replaced("no marks", "other", "new"), None);
    }

    #[test]
    fn results_page_has_markers_for_every_model_of_the_catalogue() {
        let page = include_str!("../../../RESULTS.md");
        for model in [DEFAULT_MODEL, "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"] {
            assert!(replaced(page, model, "new").is_some(), "{model}");
        }
    }
}
