"""scripts/check-docs: what counts as a link, as a heading's anchor, as an error code, as a shell block that says what it is, and
as a test that a page may cite."""

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


class CitedTests(Case):
    def problems(self, page, **files):
        docs = self.docs(asvs=page)
        for name, source in files.items():
            path = docs.root / "crates" / (name.replace("__", "/") + ".rs")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return list(docs.check_cited_tests())

    def test_tests_are_found_by_file_folder_or_crate(self):
        page = "`keys::unit` `routes::of_folder` `a_b::of_crate` `suite::on_both` `both::case` `it::routes::of_folder` `crates/x/src/keys.rs`"
        found = self.problems(
            page,
            x__src__keys='#[tokio::test(flavor = "x")]\n// Why.\n#[expect(y, reason = "z")]\npub(crate) async fn unit() {}\n',
            x__tests__it__routes__mod="#[test]\nfn of_folder() {}\n",
            **{"a-b__src__tests": "    #[test]\n    fn of_crate() {}\n"},
            x__tests__it__main="conformance_suite! {\n    suite:\n        on_both\n        other;\n    more:\n        last;\n}\n",
            x__tests__it__both="on_both_databases! {\n    case\n}\n",
        )
        self.assertEqual(found, [])

    def test_what_is_gone_is_reported_with_its_line(self):
        page = "`keys::unit`\n`keys::helper` `other::unit` `Keys::new` `session_idle_min`\n```text\n`keys::none`\n```\n`crates/x/none.rs`"
        found = self.problems(page, x__src__keys="#[test]\nfn unit() {}\n\nfn helper() {}\n")
        self.assertEqual(
            found,
            [
                "docs/asvs.md:2: no such test: keys::helper",
                "docs/asvs.md:2: no such test: other::unit",
                "docs/asvs.md:6: no such file: crates/x/none.rs",
            ],
        )

    def test_other_pages_are_not_read(self):
        self.assertEqual(list(self.docs(metering="`keys::none`").check_cited_tests()), [])


class Asvs(Case):
    SUMS = "| Level 1 | 1 | 1 | 0 | 0 |\n| Level 2 | 2 | 0 | 1 | 1 |\n| Level 3 | 2 | 0 | 2 | 0 |\n"
    ROWS = [
        "| 1.2.1 | 1 | a | Met | `x::y` |",
        "| 1.2.9 | 2 | b | Not applicable | No b |",
        "| 1.2.10 | 2 | c | Not met | Why |",
        "| 1.2.12, 1.4.1 | 3 | d and e | Not applicable | Neither |",
    ]

    def problems(self, rows, sums=SUMS):
        return list(self.docs(asvs=sums + "\n" + "\n".join(rows)).check_asvs())

    def test_complete_sheet_is_allowed(self):
        self.assertEqual(self.problems(self.ROWS), [])
        self.assertEqual(list(self.docs().check_asvs()), [])

    def test_rows_are_in_order_with_result_and_evidence(self):
        first, second, third, fourth = self.ROWS
        for rows, line, problem in [
            ([first, third, second, fourth], 7, "1.2.9 is out of order"),
            ([first, second, third, fourth.replace("1.4.1", "1.2.9")], 8, "1.2.12, 1.2.9 is out of order"),
            ([first.replace("`x::y`", "by design"), *self.ROWS[1:]], 5, "1.2.1 is met, and no test, file or page is named"),
        ]:
            self.assertEqual(self.problems(rows), [f"docs/asvs.md:{line}: {problem}"])
        for row in ["| 1.5.1 | 2 | f | Partly | Why |", "| 1.5.1 | 4 | f | Met | `x` |", "| 1.5.1 | 2 | f | Not met | |"]:
            expected = "docs/asvs.md:9: not `| number | level | what | Met, Not applicable, Not met | test or reason |`"
            self.assertEqual(self.problems([*self.ROWS, row]), [expected])

    def test_wrong_sums_are_reported_with_the_right_ones(self):
        self.assertEqual(
            self.problems(self.ROWS, self.SUMS.replace("2 | 2 | 0 | 1 | 1", "2 | 2 | 1 | 1 | 0")),
            ["docs/asvs.md: the sums of level 2 are | Level 2 | 2 | 0 | 1 | 1 |"],
        )


class Readme(Case):
    def test_readme_is_short(self):
        self.assertEqual(list(self.docs(README="a\n" * 150).check_readme()), [])
        self.assertEqual(
            list(self.docs(README="a\n" * 151).check_readme()), ["README.md: 151 lines, and at most 150 are allowed"]
        )


if __name__ == "__main__":
    unittest.main()
