"""scripts/check-perf: what it reads from callgrind, what it compares, and when it fails."""

import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("check_perf", str(ROOT / "scripts" / "check-perf"))
check_perf = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(check_perf)


class Counts(unittest.TestCase):
    def test_total_is_read_from_a_file_of_callgrind(self):
        text = "version: 1\ncreator: callgrind-3.19.0\npid: 7\nevents: Ir\nsummary: 120\n\nfn=(1) main\n1 120\n\ntotals: 123\n"
        self.assertEqual(check_perf.total_of(text), 123)
        with self.assertRaises(check_perf.Failure):
            check_perf.total_of("events: Ir\n")

    def test_set_up_does_not_count(self):
        set_up, each = 1_000_000, 250
        self.assertEqual(check_perf.cost(set_up + 100 * each, set_up + 300 * each, 100), each)

    def test_fewer_instructions_for_more_iterations_fail(self):
        with self.assertRaises(check_perf.Failure):
            check_perf.cost(500, 400, 10)

    def test_listing_has_a_name_and_iterations_on_each_line(self):
        self.assertEqual(check_perf.paths_of("generate 200\nsettle 400\n"), {"generate": 200, "settle": 400})


class Comparison(unittest.TestCase):
    def test_growth_above_five_percent_fails(self):
        lines, slower = check_perf.table({"a": 1000, "b": 1000, "c": 1000}, {"a": 1050, "b": 1051, "c": 900})
        self.assertEqual(slower, ["b"])
        self.assertIn("+5.1%  TOO SLOW", lines[2])
        self.assertIn("-10.0%  faster: renew", lines[3])

    def test_path_without_stored_count_is_new_and_passes(self):
        lines, slower = check_perf.table({}, {"a": 10})
        self.assertEqual(slower, [])
        self.assertTrue(lines[1].endswith("new"), lines)


if __name__ == "__main__":
    unittest.main()
