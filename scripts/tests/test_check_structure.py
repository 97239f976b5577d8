"""scripts/check-structure: what counts as a cycle, as a statement in a macro and as a line of production code."""

import subprocess
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("check_structure", str(ROOT / "scripts" / "check-structure"))
check_structure = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(check_structure)


class Case(unittest.TestCase):
    def files(self, **contents):
        """Creates a project with these files in crates/store/src; `__` in a name stands for a directory."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name)
        for crate in ["store", "portal"]:
            (root / "crates" / crate / "src").mkdir(parents=True)
            (root / "crates" / crate / "src" / "lib.rs").write_text("")
        for name, text in contents.items():
            path = root / "crates/store/src" / (name.replace("__", "/") + ".rs")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root


class Cycles(Case):
    def cycles(self, **contents):
        return list(check_structure.check_cycles(self.files(**contents)))

    def test_mutual_imports_are_a_cycle(self):
        found = self.cycles(
            lib="mod a;\nmod b;",
            a="use crate::b::Second;\npub struct First;",
            b="pub struct Second;\nfn f() { super::a::First; }",
        )
        self.assertEqual(
            found,
            [
                "crates/store/src: an import cycle through 2 files",
                "    a.rs:1 needs b.rs (crate::b::Second)",
                "    b.rs:2 needs a.rs (super::a::First)",
            ],
        )

    def test_re_export_resolves_to_its_source_file(self):
        contents = {
            "lib": "mod keys;\npub use keys::{Key, Limit as KeyLimit};",
            "keys__mod": "//! Only re-exports.\nmod types;\nmod rows;\npub use types::*;\npub use rows::Limit;",
            "keys__types": "pub struct Key;",
            "keys__rows": "use super::Key;\nuse crate::Key as Same;\npub enum Limit {}",
        }
        self.assertEqual(self.cycles(**contents), [])
        contents["keys__types"] = "pub struct Key(crate::KeyLimit);"
        self.assertEqual(len(self.cycles(**contents)), 3)

    def test_re_exported_and_used_name_is_a_cycle(self):
        found = self.cycles(
            lib="mod a;", a__mod="mod b;\npub use b::Inner;\npub struct Outer(Inner);", a__b="pub struct Inner; impl From<super::Outer> for Inner {}"
        )
        self.assertEqual(len(found), 3, found)

    def test_module_paths_and_macros_count_but_not_comments_or_strings(self):
        contents = {
            "lib": "mod a;\nmod b;\nmod c;",
            "a": "use crate::b;\nfn f() { b::g(); }",
            "b": "pub fn g() {} // crate::a::f\nconst T: &str = \"crate::a::f\";\n/* crate::a::f /* */ crate::a::f */",
            "c": "use tracing::tracing;\nfn h<'a>(x: &'a str) -> char { 'a' }",
        }
        self.assertEqual(self.cycles(**contents), [])
        contents["b"] += "\nmacro_rules! m { () => { $crate::a::f() } }\npub(crate) use m;"
        contents["a"] = "use crate::b::m;\npub fn f() {}\nfn x() { m!() }"
        self.assertEqual(len(self.cycles(**contents)), 3)

    def test_an_enum_in_a_macro_call_belongs_to_its_file(self):
        contents = {
            "lib": "mod a;\nmod b;",
            "a": "use crate::b::B;\ndomain::closed_enum! {\n    pub(crate) enum A { First = \"first\", }\n}",
            "b": "pub struct B(super::a::A);",
        }
        self.assertEqual(len(self.cycles(**contents)), 3)

    def test_test_modules_are_ignored(self):
        found = self.cycles(
            lib="mod a;\nmod b;\n#[cfg(test)]\nmod tests;",
            a="use crate::b::B;\npub struct A;",
            b="pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            tests="use crate::a::A;",
        )
        self.assertEqual(found, [])


class Macros(Case):
    def macros(self, body):
        return list(check_structure.check_macros(self.files(rows=f"macro_rules! m {{ {body} }}")))

    def test_items_and_expressions_are_allowed(self):
        for body in [
            "($name:ident) => { impl From<$name> for Row { const A: [u8; 2] = [0; 2]; } }",
            "($($name:ident),*) => { $(pub struct $name;)* };\n() => { use a::b; pub(crate) type C = D; }",
            "($a:expr) => { concat!(\"let x;\", $a) }",
            "($($a:expr;)*) => { [$($a),*] };",
        ]:
            self.assertEqual(self.macros(body), [], body)

    def test_statements_are_reported(self):
        for body in [
            "() => { let a = 1; }",
            "($a:expr) => { $a.fetch().await }",
            "($a:expr) => { match $a { _ => 1 } }",
            "($a:expr) => { f($a); }",
            "() => { x };\n($a:expr) => { for x in $a { g(x) } }",
            "() => { fn f() { g(); } }",
        ]:
            self.assertEqual(len(self.macros(body)), 1, body)


    def test_functions_in_a_macro_call_are_reported(self):
        root = self.files(rows="macro_rules! both { ($($m:tt)*) => { $($m)* } }\nboth! { fn f() {} }\nboth!(a);\nvec![fn_x];")
        self.assertEqual(
            list(check_structure.check_macros(root)), ["crates/store/src/rows.rs:2: a call of macro both has functions inside"]
        )


class Lengths(Case):
    def test_line_limit_ignores_tests_and_accepts_a_reason(self):
        long, tests = "fn f() {}\n" * 501, "#[cfg(test)]\nmod tests {\n" + "// one\n" * 500 + "}\n"
        root = self.files(
            long=long,
            reasoned=f"//! Reads.\n//! Long because of its table.\n{long}",
            tested="fn f() {}\n" * 400 + tests,
            lib="#[cfg(test)]\nmod helper;",
            helper=long,
            tests__deep=long,
        )
        found = list(check_structure.check_lengths(root))
        self.assertEqual(found, ["crates/store/src/long.rs: 501 lines without a reason (`//! Long because …`)"])


class Sizes(Case):
    def test_sizes_count_production_code_packages_and_tracked_words(self):
        root = self.files(lib="mod a;\n#[cfg(test)]\nmod b;\n", a="fn f() {}\n#[cfg(test)]\nmod tests {\n}\n", b="fn g() {}\n")
        (root / "Cargo.lock").write_text('[[package]]\nname = "a"\n\n[[package]]\nname = "b"\n')
        (root / "read.md").write_text("# Three words\n")
        (root / "untracked.md").write_text("not counted")
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        subprocess.run(["git", "add", "read.md"], cwd=root, check=True)
        # One line of lib.rs and one of a.rs; portal's lib.rs is empty.
        expected = {"production lines": 2, "production files": 3, "packages": 2, "words": 3}
        self.assertEqual(check_structure.sizes(root), expected)
        self.assertEqual(list(check_structure.check_sizes(root)), [])
        bound = check_structure.BOUNDS["packages"]
        (root / "Cargo.lock").write_text("[[package]]\n" * (bound + 1))
        [problem] = check_structure.check_sizes(root)
        self.assertTrue(problem.startswith(f"{bound + 1} packages"), problem)


if __name__ == "__main__":
    unittest.main()
