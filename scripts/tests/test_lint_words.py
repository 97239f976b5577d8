"""scripts/lint-words: which words it finds where, and what it leaves alone."""

import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("lint_words", str(ROOT / "scripts" / "lint-words"))
lint_words = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(lint_words)


class Case(unittest.TestCase):
    def words(self, text, file="crates/store/src/lib.rs"):
        """Returns the problems of a project with this file alone, without the file's name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            path.parent.mkdir(parents=True)
            path.write_text(text)
            return [problem.removeprefix(f"{file}:") for problem in lint_words.check(Path(folder))]

    def found(self, text, file="crates/store/src/lib.rs"):
        """Returns only the words."""
        return [problem.split(": ")[1].split(" (")[0] for problem in self.words(text, file)]


class Names(Case):
    def test_word_is_reported_once_with_line_count_and_term(self):
        found = self.words("use a::b;\nfn f(x: HowEnded) {}\nstruct S { how_ended: HowEnded }")
        use = "use StopReason, stop_reason"
        self.assertEqual(found, [f"2: HowEnded (2 times): {use}", f"3: how_ended: {use}"])

    def test_identifiers_of_the_table_are_found(self):
        for text in [
            "do_with_account(AccountDeed::Close)",
            "let deed = event;",
            "struct Asker;",
            "impl About for TheFirm {}",
            "refuse_who_may_not(portal)?",
            "Err(Refusal::from(error))",
            "Outcome::Refused { cap }",
            "NewlyMade { key }",
            "client.put_client_away()",
            "HalfSignIn { code }",
            "const HASH_PATIENCE: Duration = SECOND;",
            "retry!(anew)",
            "store.forget_dead().await",
            "let most_bytes = 1;",
            "EntriesWanted::default()",
            "struct KeptReply;",
            "wrong_tries += 1;",
            "NotOffered(field)",
            "page.way_on",
            "let facts = client.facts;",
            "Surroundings { desk }",
            "match trouble { Trouble::Slow => story }",
            "address.neighbourhood()",
            "Tried::PasswordOfInADay",
            "Survey::new(weigh(q, k))",
        ]:
            self.assertNotEqual(self.found(text), [], text)

    def test_comments_strings_and_characters_are_not_code(self):
        self.assertEqual(
            self.found(
                "// an Asker, a deed\n/* AccountDeed */ let a = \"deed\"; let b = r#\"{\"deed\": \"\\\"}\"#; let c = b\"Asker\";\n"
                "let quote = '\"'; let d = \"a \\\" deed\"; fn f<'a>(x: &'a str) {}"
            ),
            [],
        )
        self.assertEqual(self.found("let quote = '\"'; let d = deed; let e = \"\";"), ["deed"])

    def test_legitimate_names_are_left_alone(self):
        self.assertEqual(
            self.found(
                """
                struct Message { refusal: Option<String>, letter: DraftLetter, ended: bool }
                let (refused, refusal, words, who, place, letters, made, kept) = (1, 2, 3, 4, 5, 6, 7, 8);
                match error.kind() { ErrorKind::ConnectionRefused => take_turn(), _ => PromptContent::Turns(turns) }
                let (outstanding, entries, retries, passwords, forgotten_password) = (1, 2, 3, 4, 5);
                fn draft_letter() {} fn least_recently_used_page_is_evicted_first() {} fn make_room() {} fn make_writer() {}
                std::mem::forget(x); enum Kind { DraftLetter, MeetingNote } fn credit_note_is_issued() {}
                """
            ),
            [],
        )

    def test_common_words_are_no_names_of_items(self):
        self.assertEqual(
            self.found("fn refused_by_store() {}\nmod kept;\npub(crate) async fn note_payment() {}\nstruct Turns;\nfn make_key() {}"),
            ["refused_by_store", "kept", "note_payment", "Turns", "make_key"],
        )
        self.assertEqual(self.found("let kept = 1; let wanted = kept; x.made"), [])

    def test_line_can_allow_one_word(self):
        text = "struct Asker; // lint-words: allow Asker because the standard calls it so"
        self.assertEqual(self.found(text), [])
        self.assertEqual(self.found(text.replace("allow Asker", "allow Asked")), ["Asker"])
        self.assertEqual(self.found("struct Asker; // lint-words: allow Asker"), ["Asker"])


class Sql(Case):
    def test_names_count_and_values_and_comments_do_not(self):
        file = "crates/store/migrations/sqlite.sql"
        self.assertEqual(
            self.found(
                "-- deed\nCREATE TABLE half_sign_ins (wrong_tries INTEGER, deed TEXT,\n"
                "    decision TEXT CHECK (decision IN ('allowed', 'refused')));\nCREATE TRIGGER ledger_is_never_updated;",
                file,
            ),
            ["half_sign_ins", "wrong_tries", "deed", "ledger_is_never_updated"],
        )
        self.assertEqual(self.found("CREATE TABLE entries (event TEXT, position INTEGER);", file), [])


class Phrases(Case):
    def test_phrases_are_found_in_templates_strings_and_docs(self):
        self.assertEqual(self.found("<h2>Two things\n  to put right</h2>", "crates/portal/templates/a/b.html"), ["things to put right"])
        self.assertEqual(self.found('let a = "Signed in in {n} browsers";'), ["Signed in in"])
        self.assertEqual(self.found('let a = "Draft with \\\n    the model";'), ["Draft with \\ the model"])
        self.assertEqual(self.found("It is computed anew.", "docs/api.md"), ["anew"])
        self.assertEqual(self.found("button.textContent = 'Make key'", "crates/portal/assets/portal.js"), ["Make key"])

    def test_other_texts_are_left_alone(self):
        self.assertEqual(self.found("Create key. A letter for the client. Make room. Reads a new key.", "docs/api.md"), [])


if __name__ == "__main__":
    unittest.main()
