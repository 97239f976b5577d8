"""scripts/run-tests: what it parses, what it reruns, and how it decides; at the end with both runners on a crate of its own."""

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ET
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load(script):
    loader = SourceFileLoader(script.replace("-", "_"), str(ROOT / "scripts" / script))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


run_tests = load("run-tests")


class Script:
    """A runner with scripted results."""

    def __init__(self, failures, passes_alone, status=100, broken=False):
        self.outcome = run_tests.Outcome(status, failures, lambda flaky: f"Summary ({flaky} flaky)", broken)
        self.passes_alone = passes_alone
        self.reruns = []

    def run(self):
        return self.outcome

    def rerun(self, failure):
        self.reruns.append(failure.name)
        return failure.name in self.passes_alone


def failure(name, output=""):
    return run_tests.Failure("chancery-store::it", name, output)


def judged(runner):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = run_tests.judge(runner)
    return status, printed.getvalue()


class Judging(unittest.TestCase):
    def test_two_flaky_tests_are_listed_and_tolerated(self):
        runner = Script([failure("a::one", "seed 17\nleft: 1"), failure("a::two")], {"a::one", "a::two"})
        status, printed = judged(runner)
        self.assertEqual(status, 0)
        self.assertIn("FLAKY chancery-store::it a::one (seed 17)", printed)
        self.assertIn("    | left: 1", printed)
        self.assertIn("FLAKY chancery-store::it a::two (seed none printed)", printed)
        self.assertTrue(printed.rstrip().endswith("Summary (2 flaky)"), printed)

    def test_three_flaky_tests_fail_the_run(self):
        names = {"a::one", "a::two", "a::three"}
        status, printed = judged(Script([failure(name) for name in names], names))
        self.assertEqual(status, 100)
        self.assertIn("at most 2 are tolerated", printed)

    def test_failure_that_repeats_alone_fails_the_run(self):
        status, printed = judged(Script([failure("a::one"), failure("a::two")], {"a::one"}))
        self.assertEqual(status, 100)
        self.assertIn("FLAKY chancery-store::it a::one", printed)
        self.assertNotIn("FLAKY chancery-store::it a::two", printed)

    def test_fault_and_race_tests_are_never_rerun(self):
        for name in [
            "faults::kills::a_server_is_found_again",
            "nodes::sessions::a_session_is_one_everywhere",
            "sign_in::identity::fuzz::id_tokens",
            "crash_recovery::rows_are_reported_only_after_settlement",
            "redis_outage::nothing_is_admitted",
            "v1::idempotency::racing_duplicates_run_once",
            "limits::no_race_passes_a_limit",
            "v1::streaming::reply_with_a_delivered_final_event_stays_billed_after_a_kill",
            "concurrent_issues_create_one_invoice",
        ]:
            runner = Script([failure(name)], {name})
            status, _ = judged(runner)
            self.assertEqual((status, runner.reruns), (100, []), name)
        for name in ["traces::a_trace_is_kept", "clients::every_skill_is_listed", "defaults::of_all", "braces"]:
            self.assertIsNone(run_tests.NEVER_RERUN.search(name), name)

    def test_a_broken_run_stays_broken(self):
        status, _ = judged(Script([failure("a::one")], {"a::one"}, status=101, broken=True))
        self.assertEqual(status, 101)

    def test_many_failures_are_not_rerun(self):
        names = [f"a::test_{number}" for number in range(run_tests.MOST_RERUNS + 1)]
        runner = Script([failure(name) for name in names], set(names))
        status, _ = judged(runner)
        self.assertEqual((status, runner.reruns), (100, []))

    def test_shared_flaky_list_shares_the_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["CHANCERY_FLAKY_LIST"] = f"{folder}/list"
            self.addCleanup(os.environ.pop, "CHANCERY_FLAKY_LIST")
            first = judged(Script([failure("a::one"), failure("a::two")], {"a::one", "a::two"}))
            self.assertEqual(first[0], 0)
            status, printed = judged(Script([], set(), status=0))
            self.assertEqual(status, 0)
            self.assertIn("a::one", printed)
            status, printed = judged(Script([failure("a::three")], {"a::three"}))
            self.assertEqual(status, 100)
            self.assertIn("FLAKY: 3 tests", printed)


class Seeds(unittest.TestCase):
    def test_rerun_uses_the_last_printed_seed(self):
        found = failure("a", "seed 17\nseed 18\npanicked at: left 3")
        self.assertEqual(found.seed, "18")
        self.assertEqual(found.environment()["CHANCERY_TEST_SEED"], "18")
        self.assertEqual(failure("a", "again with CHANCERY_FAULTS_SEED=4").seed, "4")

    def test_proptest_seed_line_is_shown(self):
        line = "cc " + "0a" * 32
        self.assertEqual(failure("a", f"proptest: add the following line\n{line}\n").seed, line)
        self.assertNotIn("CHANCERY_TEST_SEED", failure("a", line).environment())


class Reading(unittest.TestCase):
    def test_nextest_report_is_parsed(self):
        report = """<testsuites name="nextest-run" tests="3" failures="1" errors="1" time="2.5">
          <testsuite name="chancery-store::it" tests="3">
            <testcase name="a::passes" classname="chancery-store::it"/>
            <testcase name="a::fails" classname="chancery-store::it"><failure type="test failure"/>
              <system-out>seed 5</system-out><system-err>panicked</system-err></testcase>
            <testcase name="a::starts_not" classname="chancery-store::it"><error>no such program</error></testcase>
          </testsuite></testsuites>"""
        root = ET.fromstring(report)
        fails, starts_not = run_tests.nextest_failures(root)
        self.assertEqual((str(fails), fails.seed, fails.output), ("chancery-store::it a::fails", "5", "seed 5\npanicked"))
        self.assertEqual(starts_not.output, "no such program")
        summary = run_tests.nextest_summary(root, 1)
        self.assertEqual(summary.split(), "Summary [ 2.500s] 3 tests run: 2 passed (1 flaky), 1 failed".split())

    def test_cargo_output_is_parsed(self):
        output = """   Compiling a v0.1.0
     Running unittests src/lib.rs (target/debug/deps/a-1)

running 2 tests
test one ... ok
test two ... FAILED

failures:

---- two stdout ----
seed 9
thread 'two' panicked at src/lib.rs:1:1:


failures:
    two

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/it.rs (target/debug/deps/it-2)

running 1 test
test three ... error: test failed, to rerun pass `--test it`
"""
        read = run_tests.read_cargo_output(output.splitlines())
        self.assertEqual([(found.where, found.name, found.seed) for found in read.failures], [("target/debug/deps/a-1", "two", "9")])
        self.assertEqual((read.passed, read.failed, read.without_result), (1, 1, 1))

    def test_options_and_test_names_are_split(self):
        split = run_tests.split_names
        self.assertEqual(split(["--workspace", "--test", "it", "tour::"]), (["--workspace", "--test", "it"], ["tour::"]))
        self.assertEqual(split(["--workspace", "--lib", "--", "a", "b"]), (["--workspace", "--lib"], ["a", "b"]))


TINY_CRATE = """
fn again(name: &str) -> bool {
    let mark = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let is_again = mark.exists();
    std::fs::write(mark, "").unwrap();
    is_again
}
#[test]
fn passes() {}
#[test]
fn passes_on_the_second_attempt() {
    println!("seed 42");
    assert!(again("first"), "the first try");
    assert_eq!(std::env::var("CHANCERY_TEST_SEED").as_deref(), Ok("42"));
}
#[test]
fn is_a_race() {
    assert!(again("second") || std::env::var_os("WITHOUT_RACE").is_some(), "lost");
}
"""


class WithRunners(unittest.TestCase):
    """A crate with a test that fails once and a race that fails once."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for path in ["scripts", "src"]:
            (self.folder / path).mkdir()
        shutil.copy(ROOT / "scripts" / "run-tests", self.folder / "scripts")
        shutil.copytree(ROOT / ".config", self.folder / ".config")
        (self.folder / "src" / "lib.rs").write_text(f"#[cfg(test)]\nmod tests {{ {TINY_CRATE} }}\n")
        (self.folder / "Cargo.toml").write_text('[package]\nname = "tiny"\nedition = "2024"\n[lib]\ndoctest = false\n[workspace]\n')
        (self.folder / "Cargo.lock").write_text('version = 4\n[[package]]\nname = "tiny"\nversion = "0.0.0"\n')

    def result_of(self, runner, **environment):
        for mark in ["first", "second"]:
            (self.folder / mark).unlink(missing_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "CHANCERY", "NEXTEST"))}
        done = subprocess.run(
            [self.folder / "scripts" / "run-tests", "--workspace"],
            env={**inherited, "CHANCERY_TEST_RUNNER": runner, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def check(self, runner, summary):
        status, printed = self.result_of(runner, WITHOUT_RACE="1")
        self.assertEqual(status, 0, printed)
        self.assertRegex(printed, r"FLAKY \S*tiny\S* tests::passes_on_the_second_attempt \(seed 42\)")
        self.assertIn("the first try", printed)
        self.assertRegex(printed.rstrip().splitlines()[-1], summary)
        status, printed = self.result_of(runner)
        self.assertNotEqual(status, 0, printed)
        self.assertRegex(printed, r"Not run again, because it is about faults or races: \S*tiny\S* tests::is_a_race")
        status, printed = self.result_of(runner, RUSTFLAGS="--cfg nonsense -Dwarnings -Aunexpected_cfgs --no-such-option")
        self.assertNotEqual(status, 0, "a build that fails")

    def test_with_cargo(self):
        self.check("cargo", r"test result: ok\. 3 passed \(1 flaky\); 0 failed")

    @unittest.skipUnless(run_tests.has_nextest(), "cargo-nextest is not installed")
    def test_with_nextest(self):
        self.check("nextest", r"Summary \[.*\] 3 tests run: 3 passed \(1 flaky\)")


if __name__ == "__main__":
    unittest.main()
