"""scripts/check-docs: what counts as a link, as a heading's anchor, as an error code and as a shell block that says what it is."""

import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("check_docs", str(ROOT / "scripts" / "check-docs"))
check_docs = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(check_docs)


class Case(unittest.TestCase):
    def docs(self, **contents):
        """Creates a project with these pages in docs/; `__` in a name stands for a directory. Capitals are pages of the root."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name).resolve()
        pages = {"README": "", "ARCHITECTURE": "", "CONTRIBUTING": "", "SUMMARY": "", "troubleshooting": "", **contents}
        for name, text in pages.items():
            is_of_root = f"{name}.md" in check_docs.OTHER_PAGES
            path = root / ("" if is_of_root else "docs") / (name.replace("__", "/") + ".md")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check_docs.Docs(root)


class Summary(Case):
    def test_pages_must_be_listed(self):
        docs = self.docs(SUMMARY="[Help](troubleshooting.md)\n- [A](a.md)\n  - [B](adr/b.md)", a="", adr__b="", adr__c="", d="")
        self.assertEqual(
            list(docs.check_summary()), ["docs/adr/c.md: not in docs/SUMMARY.md", "docs/d.md: not in docs/SUMMARY.md"]
        )


class Links(Case):
    def problems(self, **contents):
        return list(self.docs(**contents).check_links())

    def test_links_to_pages_and_headings_resolve(self):
        page = "# A page's `code_span`: x\n## Same\n## Same\n[a](b.md) [b](adr/c.md#top-of-c) [c](#a-pages-code_span-x)\n[d](#same-1)"
        found = self.problems(
            a=page + "\n![e](b.md 'x') [wrapped\ntext](b.md) [f](https://x.y/z#w) <a href=\"mailto:a@b.c\">",
            b="[up](a.md#same)",
            adr__c="## Top of C\n[up](../a.md)",
            README='<img src="docs/a.md"> [folder](docs/adr)',
        )
        self.assertEqual(found, [])

    def test_dead_links_are_reported_with_their_line(self):
        found = self.problems(a="# A\n\n[x](none.md)\n[y](#b) <img src=\"no.png\">\n[z]: b.md#c\n[w](/b.md)", b="# B\n[x](adr)", adr__c="")
        self.assertEqual(
            found,
            [
                "docs/a.md:3: dead link: none.md",
                "docs/a.md:4: link to a heading that does not exist: #b",
                "docs/a.md:4: dead link: no.png",
                "docs/a.md:5: link to a heading that does not exist: b.md#c",
                "docs/a.md:6: link with an absolute path: /b.md",
                "docs/b.md:2: dead link: adr",
            ],
        )

    def test_book_does_not_link_out_of_docs(self):
        found = self.problems(a="[x](../README.md)", README="[x](CONTRIBUTING.md)")
        self.assertEqual(found, ["docs/a.md:1: link to a file outside docs/: ../README.md"])

    def test_code_and_comments_have_no_links_or_headings(self):
        page = "```sh\n# not-a-heading\n[a](none.md)\n```\n`[a](none.md)` ``[`a`](none.md)`` <!-- [a](none.md)\n\n --> [b](#not-a-heading)"
        self.assertEqual(self.problems(a=page), ["docs/a.md:7: link to a heading that does not exist: #not-a-heading"])


class ErrorCodes(Case):
    def test_codes_need_headings_and_headings_need_codes(self):
        docs = self.docs(troubleshooting="# Codes\n## API errors\n## not_found\n## gone\n## hung_up\n## stale_code\n")
        source = docs.root / "crates/api/src/error.rs"
        source.parent.mkdir(parents=True)
        source.write_text(
            'error(\n    404,\n    "not_found",\n); const CLOSED: &str = "hung_up";\n'
            'ErrorPage::new(StatusCode::GONE, "gone", "Gone"); ErrorPage::conflict("in_conflict", "Conflict");\n'
            '#[cfg(test)] mod tests { fn f() { error(500, "only_in_a_test"); } }'
        )
        self.assertEqual(
            list(docs.check_error_codes()),
            [
                "crates/api/src/error.rs:5: error code in_conflict has no heading in docs/troubleshooting.md",
                "docs/troubleshooting.md: error code stale_code is not in the source",
            ],
        )


class Blocks(Case):
    def problems(self, text):
        return [problem.removeprefix("docs/a.md:") for problem in self.docs(a=text).check_blocks()]

    def test_blocks_that_say_what_they_are_are_allowed(self):
        text = (
            "```sh\nls\n```\n\n```text output\na\n```\n\n<!-- no-run: takes an hour -->\n```sh no-run\nmake\n```\n"
            "1. A list\n\n   <!-- no-run: waits -->\n   ```sh no-run\n   cat\n   ```\n\n````text\n```sh x\n```\n````\n"
        )
        self.assertEqual(self.problems(text), [])

    def test_other_blocks_are_reported(self):
        for text, problem in [
            ("```\nls\n```", "1: code block without a language; use `text` if it has none"),
            ("\n```bash\nls\n```", "2: mark shell blocks `sh` or `sh no-run`"),
            ("```sh norun\nls\n```", "1: unknown kind of shell block: `sh norun`"),
            ("```sh no-run\nls\n```", "1: `sh no-run` without `<!-- no-run: reason -->` on the line above"),
            ("<!-- no-run: -->\n```sh no-run\nls\n```", "2: `sh no-run` without `<!-- no-run: reason -->` on the line above"),
            ("<!-- no-run: slow -->\n```sh\nls\n```", "2: `<!-- no-run: … -->` above a block that is not `sh no-run`"),
            ("```json\n{}\n```\n```text output\na\n```", "4: `text output` without a block that runs before it"),
        ]:
            self.assertEqual(self.problems(text), [problem], text)


class Readme(Case):
    def test_readme_is_short(self):
        self.assertEqual(list(self.docs(README="a\n" * 150).check_readme()), [])
        self.assertEqual(
            list(self.docs(README="a\n" * 151).check_readme()), ["README.md: 151 lines, and at most 150 are allowed"]
        )


if __name__ == "__main__":
    unittest.main()
