//! Runs the shell blocks of README.md and of the book in docs/ against a demo server.
//!
//! A block marked `sh` runs in the demo's directory. If the next block is marked `text output`, it must match what the
//! block prints, line by line; `…` stands for any text in a line. `scripts/check-docs` checks how blocks are marked.

use crate::server::{Firm, Server, binary};
use serde_json::Value;
use std::path::Path;

/// Time limit for one block. A reply takes about a second; the rest is headroom for a busy machine.
const BLOCK_TIMEOUT: &str = "60s";

/// What `timeout` exits with.
const TIMED_OUT: i32 = 124;

struct Block<'a> {
    /// Line number of the opening fence.
    line: usize,
    indent: usize,
    info: &'a str,
    text: String,
}

struct Demo {
    server: Server,
    firm: Firm,
    api_key: String,
}

#[test]
fn shell_blocks_of_the_docs_run_and_print_what_they_show() {
    let demo = Demo::start();
    let (mut runs, mut failures) = (0, Vec::new());
    for name in pages() {
        let page = read(&name);
        let blocks = blocks(&page);
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.info == "sh") {
            let expected = blocks.get(index + 1).filter(|next| next.info == "text output");
            runs += 1;
            if let Err(failure) = demo.run(block, expected) {
                failures.push(format!("{name}:{}: {failure}", block.line));
            }
        }
    }
    assert!(runs >= 20, "only {runs} blocks were found");
    assert!(failures.is_empty(), "{} of {runs} blocks failed\n\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn ellipsis_stands_for_any_text_in_one_line() {
    for (expected, printed) in [
        ("a", "a\n"),
        ("a…", "a"),
        ("a…c", "a b c"),
        ("…b…b…", "abb"),
        ("…", "anything"),
        ("{…}\nb", "{\"a\":{}}\nb\n"),
    ] {
        assert!(lines_match(expected, printed), "{expected:?} {printed:?}");
    }
    for (expected, printed) in
        [("a", "ab"), ("a…b…b", "ab"), ("ab…bc", "abc"), ("…", "a\nb"), ("a\nb", "a"), ("a", "a\nb")]
    {
        assert!(!lines_match(expected, printed), "{expected:?} {printed:?}");
    }
}

impl Demo {
    fn start() -> Self {
        let firm = Firm::new();
        let server = firm.start_with(&["--demo"]);
        let file = std::fs::read(firm.data().join("demo.json")).unwrap();
        let demo: Value = serde_json::from_slice(&file).unwrap();
        Self { api_key: demo["api_key"].as_str().unwrap().to_owned(), server, firm }
    }

    /// Replaces the default ports, which the documentation names, by those that the system chose for this demo.
    fn with_ports(&self, text: &str) -> String {
        let Server { api, portal, auth, ops, .. } = &self.server;
        let defaults = [(":8080", api), (":8081", portal), (":8082", auth), (":8083", ops)];
        defaults.iter().fold(text.to_owned(), |text, (default, url)| {
            let (_, port) = url.rsplit_once(':').unwrap();
            text.replace(default, &format!(":{port}"))
        })
    }

    fn run(&self, block: &Block<'_>, expected: Option<&Block<'_>>) -> Result<(), String> {
        // README.md has `ck_…` for the reader's own key.
        let script = self.with_ports(&block.text).replace("ck_…", &self.api_key);
        let expected = expected.map(|expected| self.with_ports(&expected.text));
        let folder = Path::new(binary()).parent().unwrap();
        let mut shell = self.firm.program("timeout");
        shell.args([BLOCK_TIMEOUT, "bash", "-euo", "pipefail", "-c", &script]);
        shell.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        shell.env("CHANCERY_URL", &self.server.api).env("CHANCERY_API_KEY", &self.api_key);

        let output = shell.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let problem = match output.status.code() {
            Some(0) if expected.as_ref().is_none_or(|expected| lines_match(expected, &printed)) => {
                return Ok(());
            }
            Some(0) => "the output differs".to_owned(),
            Some(TIMED_OUT) => format!("not done after {BLOCK_TIMEOUT}"),
            _ => output.status.to_string(),
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        let expected = expected.as_deref().unwrap_or("(anything)\n");
        Err(format!(
            "{problem}\n{script}--- expected:\n{expected}--- printed:\n{printed}\n--- standard error:\n{errors}"
        ))
    }
}

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

/// Returns README.md and the pages of the book, in the book's order.
fn pages() -> Vec<String> {
    let summary = read("docs/SUMMARY.md");
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let chapters = links.map(|(page, _)| format!("docs/{page}"));
    std::iter::once("README.md".to_owned()).chain(chapters).collect()
}

/// Returns the fenced blocks of a page, without the indentation that a list gives them.
fn blocks(page: &str) -> Vec<Block<'_>> {
    let (mut blocks, mut open) = (Vec::new(), None::<Block<'_>>);
    for (index, line) in page.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let indent = line.len() - line.trim_start().len();
                open = Some(Block { line: index + 1, indent, info: info.trim(), text: String::new() });
            }
            (None, Some(block)) => {
                block.text += line.get(block.indent..).unwrap_or_default();
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

fn lines_match(expected: &str, printed: &str) -> bool {
    let (expected, printed) = (expected.trim_end(), printed.trim_end());
    expected.lines().count() == printed.lines().count()
        && expected
            .lines()
            .zip(printed.lines())
            .all(|(expected, line)| line_matches(expected, line.trim_end()))
}

fn line_matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}
