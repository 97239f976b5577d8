"""bench/drafting: what the scorer accepts and rejects, what it reads from the portal, and what it writes."""

import contextlib
import datetime
import io
import json
import re
import sqlite3
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "drafting"))

import evaluate  # noqa: E402
import portal  # noqa: E402
import report  # noqa: E402
import scoring  # noqa: E402
from scoring import Draft  # noqa: E402

TODAY = datetime.date(2026, 11, 17)
NOTES = {note["id"]: note for note in evaluate.read_notes(evaluate.NOTES)}
NOTE = NOTES["three-hours"]
GOOD = """\
Dear Ms Raman,

Thank you for meeting me at the bakery to talk about invoice 2041 of 1 October 2026.

You told us that your own staff did the stock count and that our colleague Omar only watched. We have checked the timesheet. The \
three hours were booked as attendance, which our contract does not cover. We will therefore credit them, $420.00 in all, and send you \
a corrected invoice this week.

The remaining amount of $1,860 is not affected. As agreed, please pay it by October 30, 2026. We look forward to the next quarterly \
review. If you have any questions, please call me.

Yours sincerely,
Maya Fletcher
Marlow & Finch"""


def scored(text, note=NOTE, **more):
    return scoring.score(Draft(text, "complete", **more), note, portal.WRITER, TODAY)


class PointOfView(unittest.TestCase):
    def test_sentences_of_the_note_about_the_reader_confuse_the_roles(self):
        about = GOOD.replace("We look forward", "She was friendly about it and wants to go on. We look forward")
        self.assertIn("speaks about the reader", scored(about).failures["roles"])

    def test_she_for_someone_else_is_no_confusion(self):
        other = GOOD.replace("We look forward", "Ines Duarte takes over from here. She will call you. We look forward")
        self.assertNotIn("roles", scored(other).failures)


class Notes(unittest.TestCase):
    def test_thirty_notes_of_sixty_to_two_hundred_words_for_thirty_clients(self):
        self.assertEqual(len(NOTES), 30)
        self.assertEqual(len({note["client"]["name"] for note in NOTES.values()}), 30)
        for name, note in NOTES.items():
            with self.subTest(name):
                self.assertTrue(60 <= len(note["entry"]["text"].split()) <= 200)
                self.assertEqual(note["language"], "en")
                self.assertGreaterEqual(len(note["facts"]), 4)
                self.assertIn(note["entry"]["kind"], ("meeting_note", "billing_dispute"))
                self.assertIn(note["roles"]["owes"], ("client", "firm", None))
                self.assertTrue(note["roles"]["never"])

    def test_dates_that_share_a_month_are_dates_of_the_note(self):
        for name, date in (("vat-filing", "12 September"), ("double-charge", "24 September 2026"), ("noise-complaint", "19 October")):
            with self.subTest(name):
                source = scoring.allowed_text(NOTES[name], portal.WRITER, TODAY)
                self.assertEqual(scoring.invented_figures(f"It was on {date}.", source, TODAY), [])

    def test_every_note_passes_its_own_rules_on_facts_figures_and_roles(self):
        for name, note in NOTES.items():
            with self.subTest(name):
                text = scoring.plain(note["entry"]["text"])
                with_contact = f"{text} {note['client']['contact']}"
                self.assertEqual(scoring.missing_facts(with_contact, note["facts"]), [])
                source = scoring.allowed_text(note, portal.WRITER, TODAY)
                self.assertEqual(scoring.invented_figures(text, source, TODAY), [])
                self.assertFalse([rule for rule in note["roles"]["never"] if re.search(rule, text, re.I)])


class Scoring(unittest.TestCase):
    def assert_failure(self, name, text, note=NOTE, **more):
        found = scored(text, note, **more)
        self.assertIn(name, found.failures, found)
        self.assertFalse(found.is_usable)
        return found

    def test_good_letter_is_usable(self):
        found = scored(GOOD)
        self.assertEqual(found.failures, {})
        self.assertEqual((found.facts_kept, found.facts), (5, 5))

    def test_failed_draft_is_unusable_with_its_reason(self):
        found = scored("", error="The model is busy.")
        self.assertEqual(found.failures, {"failed": "The model is busy."})
        self.assertEqual((found.facts_kept, found.facts), (0, 5))

    def test_loop_is_found_by_sequences_and_by_sentences(self):
        self.assert_failure("loop", "who is a contractor who has a client " * 20)
        sentence = "Please let me know soon."
        self.assertIsNone(scoring.loop(f"{GOOD}\n{sentence}\n{sentence}"))
        self.assert_failure("loop", GOOD.replace("If you have", f"{sentence} {sentence} {sentence} If you have"))

    def test_cut_off_letter_is_unfinished_whatever_the_portal_says(self):
        draft = Draft(GOOD, "max_output_tokens")
        found = scoring.score(draft, NOTE, portal.WRITER, TODAY)
        self.assertIn("unfinished", found.failures)
        self.assertTrue(found.is_shown_as_done)
        self.assert_failure("unfinished", GOOD.split("Yours")[0].rstrip() + " and also,")

    def test_marked_draft_is_unusable_but_not_shown_as_done(self):
        found = self.assert_failure("unfinished", GOOD, is_unfinished=True)
        self.assertFalse(found.is_shown_as_done)

    def test_prompt_in_the_letter_is_a_leak(self):
        for leaked in (
            "===== End of entry 1",
            "Client since: 4 March 2024",
            "<|im_end|>",
            "Answer with the letter alone.",
            '"We" means Marlow & Finch; "you" means the client.',
            "Never write as the client.",
            "Notes 2, meeting note, 12 November 2026: Call with you.",
            "Letter to Priya Raman:",
            "You add no facts.",
            "Leo Marsh of our office will send you the new price list by 22 May.",
            NOTE["purpose"],
            NOTE["entry"]["text"],
        ):
            with self.subTest(leaked):
                self.assert_failure("leak", f"{GOOD}\n{leaked}")

    def test_facts_are_recognised_in_other_spellings(self):
        text = "By Oct 30 you pay USD 1860.00, as MS RAMAN said; 2026-10-14 is the day."
        self.assertTrue(scoring.has_fact(text, "30 October 2026"))
        self.assertTrue(scoring.has_fact(text, "1,860"))
        self.assertTrue(scoring.has_fact(text, "Raman"))
        self.assertTrue(scoring.has_fact(text, "14 October"))
        self.assertFalse(scoring.has_fact(text, "186"))
        self.assertFalse(scoring.has_fact("as long as it takes", "Long"))
        self.assertFalse(scoring.has_fact("30 October 2025", "30 October 2026"))

    def test_letter_without_the_facts_is_unusable(self):
        bare = re.sub(r"\b(?:2041|420\.00|1,860|October 30, 2026)\b", "it", GOOD)
        self.assertEqual(self.assert_failure("facts", bare).facts_kept, 1)

    def test_figures_dates_and_weekdays_from_nowhere_are_invented(self):
        for extra, invented in (
            ("The fee is $99.", "99"),
            ("We meet on 3 December.", "3 December"),
            ("We meet on 30 October 2031.", "30 October 2031"),
            ("It began in June 2019.", "June 2019"),
            ("We meet on Sunday.", "Sunday"),
            ("We meet at 3:30 pm.", "3:30"),
            ("You hear from us within five business days.", "five business days"),
        ):
            with self.subTest(extra):
                found = self.assert_failure("invented", GOOD.replace("If you have", f"{extra} If you have"))
                self.assertIn(invented, found.invented)

    def test_figures_of_the_record_and_of_today_are_not_invented(self):
        for extra in ("17 November 2026", "12 Harbour Lane", "The 3 hours are credited.", "On the 30th.", "1. First, 2041.\n2) Then."):
            with self.subTest(extra):
                self.assertEqual(scored(f"{extra}\n{GOOD}").invented, [])

    def test_swapped_roles_are_found(self):
        self.assert_failure("roles", GOOD.replace("You told us", "We dispute the hours. You told us"))
        self.assert_failure("roles", GOOD.replace("Dear Ms Raman", "Dear Maya"))
        self.assert_failure("roles", GOOD.replace("You told us that your", "Priya Raman told us that her"))
        addressed = GOOD.replace("Thank you for meeting", "Thank you, Ms Raman, for meeting")
        self.assertEqual(scored(f"Priya Raman, owner\nHarbour Lane Bakery\n{addressed}").failures, {})
        self.assert_failure("roles", GOOD.replace("Maya Fletcher\nMarlow & Finch", "Priya Raman\nHarbour Lane Bakery"))
        self.assert_failure("roles", GOOD.replace("You told", "I write on behalf of Harbour Lane Bakery. You told"))

    def test_form_of_a_letter_is_checked(self):
        for text, found in (
            (GOOD.replace("Dear Ms Raman,\n", ""), "0 salutations"),
            (f"Dear Ms Raman,\n{GOOD}", "2 salutations"),
            (GOOD.replace("Ms Raman", "Sir or Madam"), "without Raman"),
            (GOOD.replace("Yours sincerely,", ""), "0 closings"),
            (f"{GOOD}\nKind regards,\nMaya", "2 closings"),
            (f"# Letter\n{GOOD}", "markup '#'"),
            (GOOD.replace("the timesheet", "**the timesheet**"), "markup '**'"),
            (GOOD.replace("Maya Fletcher", "[Your Name]"), "placeholder '[Your Name]'"),
        ):
            with self.subTest(found):
                self.assertIn(found, self.assert_failure("format", text).failures["format"])

    def test_length_has_two_bounds(self):
        self.assert_failure("length", "Dear Ms Raman,\nThank you.\nRegards,\nMaya")
        self.assert_failure("length", GOOD + " ".join(f"word{chr(97 + at % 26)}{chr(97 + at // 26)}" for at in range(300)))

    def test_typographic_characters_do_not_matter(self):
        typographic = GOOD.replace("1,860", "1,860\u00a0").replace("Thank you", "Thank you\u202f").replace("-", "‑")
        self.assertEqual(scored(typographic).failures, {})


class Stream(unittest.TestCase):
    def read(self, text, is_over=lambda: False):
        return portal.read_draft(portal.events(io.BytesIO(text.encode())), is_over)

    def test_draft_is_read_from_its_events(self):
        text = (
            ': begun\n\nevent: delta\ndata: {"text": "Dear "}\n\n: keep-alive\n\nevent: delta\ndata: {"text": "Ms Raman"}\n\n'
            'event: finished\ndata: {"stop_reason": "complete", "output_tokens": 4, "is_unfinished": false}\n\n'
        )
        draft, retry_after_s = self.read(text)
        self.assertEqual(draft, Draft("Dear Ms Raman", "complete", False, None, 4))
        self.assertIsNone(retry_after_s)

    def test_text_of_the_last_event_is_what_the_editor_has(self):
        text = 'event: delta\ndata: {"text": "We met. We met. We"}\n\nevent: finished\ndata: {"text": "We met.", "output_tokens": 4}\n\n'
        self.assertEqual(self.read(text)[0].text, "We met.")

    def test_suggested_length_is_read_from_the_panel(self):
        page = '<label for="draft-max">Maximum</label><input class="num" id="draft-max" type="text" value="1,300" aria-describedby="x">'
        self.assertEqual(portal.SUGGESTED_TOKENS.search(page).group(1), "1,300")

    def test_older_portal_does_not_say_whether_it_is_unfinished(self):
        draft, _ = self.read('event: finished\ndata: {"stop_reason": "complete", "output_tokens": 4}\n\n')
        self.assertIsNone(draft.is_unfinished)

    def test_failure_carries_the_message_and_the_delay(self):
        draft, retry_after_s = self.read('event: failed\ndata: {"words": "The model is busy.", "retry_after_s": 5}\n\n')
        self.assertEqual((draft.error, retry_after_s), ("The model is busy.", 5))

    def test_stream_without_an_end_and_one_that_takes_too_long_are_failures(self):
        self.assertIn("without its last event", self.read('event: delta\ndata: {"text": "Dear"}\n\n')[0].error)
        self.assertIn("time limit", self.read(": keep-alive\n\n", lambda: True)[0].error)

    def test_insert_fills_required_columns_and_skips_unknown_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            database = Path(folder) / "test.db"
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, email TEXT NOT NULL, at_ms INTEGER NOT NULL, name TEXT)")
            self.assertEqual(portal.insert(database, "people", name="Maya", mailbox="unknown"), 1)
            with contextlib.closing(sqlite3.connect(database)) as connection:
                [(email, at_ms, name)] = connection.execute("SELECT email, at_ms, name FROM people").fetchall()
            self.assertEqual((email, name), ("", "Maya"))
            self.assertGreater(at_ms, 0)


class Reports(unittest.TestCase):
    def row(self, model="m", label="after"):
        results = [(Draft(GOOD, "complete", output_tokens=150, seconds=3.0), scored(GOOD)), (Draft(error="busy"), scored("", error="busy"))]
        run = {"day": "2026-11-17", "cpu": "2 cores", "revision": "abc", "command": "evaluate.py m", "concurrency": 2, "wall_s": 10.0}
        row = report.summary(model, label, run, results)
        row["shown"] = report.shown_letters([NOTE, NOTES["late-report"]], results)
        return row, results

    def test_summary_counts_and_medians(self):
        row, _ = self.row()
        self.assertEqual((row["usable"], row["letters"], row["failures"]["failed"]), (1, 2, 1))
        self.assertEqual((row["facts_kept"], row["tokens_per_s"], row["median_s"]), (0.5, 15.0, 3.0))

    def test_run_without_any_letter_still_has_a_summary(self):
        run = {"day": "", "cpu": "", "revision": "", "command": "", "concurrency": 1, "wall_s": 0.0}
        row = report.summary("m", "before", run, [(Draft(error="busy"), scored("", error="busy"))])
        self.assertIn("| m | before | **0/1** | 0% | 1 |", report.table([row]))

    def test_newer_result_replaces_the_same_model_and_label(self):
        before, after, other = self.row(label="before")[0], self.row()[0], self.row("n")[0]
        rows = report.merged(report.merged(report.merged([], after), other), before)
        self.assertEqual([(row["model"], row["label"]) for row in rows], [("m", "before"), ("m", "after"), ("n", "after")])
        self.assertEqual(len(report.merged(rows, self.row()[0])), 3)

    def test_letters_page_has_every_letter_and_every_reason(self):
        row, results = self.row()
        page = report.letters_page(row, [NOTE, NOTES["late-report"]], results)
        self.assertIn(GOOD, page)
        self.assertIn("**Usable.**", page)
        self.assertIn("**Not usable**: no letter: busy.", page)

    def test_letter_cannot_end_its_code_block(self):
        self.assertEqual(report.fenced("a\n```\nb"), "````text\na\n```\nb\n````")

    def test_section_replaces_only_the_text_between_the_marks(self):
        page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
        self.assertEqual(report.replaced(page, "new"), f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n")
        with self.assertRaises(ValueError):
            report.replaced("no marks", "new")

    def test_results_page_has_the_marks(self):
        report.replaced((ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8"), report.section([self.row()[0]]))


class Arguments(unittest.TestCase):
    def test_models_are_names_paths_or_both(self):
        self.assertEqual(evaluate.parse_model("smollm2-135m"), ("smollm2-135m", None))
        self.assertEqual(evaluate.parse_model("/models/qwen.gguf"), ("qwen", "/models/qwen.gguf"))
        self.assertEqual(evaluate.parse_model("mine=/models/x.gguf"), ("mine", "/models/x.gguf"))

    def test_command_of_the_results_has_no_paths(self):
        shown = evaluate.shown_arguments(["--chancery", "/a/b", "--label", "after", "mine=/c/d.gguf", "/e/f.gguf"])
        self.assertEqual(shown, ["--label", "after", "mine=PATH", "f=PATH"])

    def test_bad_arguments_are_rejected_with_the_range(self):
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), self.assertRaises(SystemExit):
            evaluate.parse(["--label", "after", "--concurrency", "9", "m"])
        self.assertIn("--concurrency 9: use 1 to 4", stderr.getvalue())
        with self.assertRaises(portal.EvaluationError):
            evaluate.chosen_notes(list(NOTES.values()), ["unknown"])


if __name__ == "__main__":
    unittest.main()
