"""scripts/flamegraph: what it reads from perf, whose samples it counts, and how large its files get."""

import unittest
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("flamegraph", str(ROOT / "scripts" / "flamegraph"))
flamegraph = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(flamegraph)

SCRIPT = """tokio-runtime-w  101/103
\t    55a0 _ZN8chancery6settle17h0123456789abcdefE+0x12 (/build/target/release/chancery)
\t    55b0 main (/build/target/release/chancery)
\t    7f00 __libc_start (/usr/lib/libc.so.6)

sqlx sqlite wor  101/104
\t    7f00 fdatasync (/usr/lib/libc.so.6)

gateway_peers    200/200
\t    66a0 main (/build/target/release/gateway_peers)

"""


class Reading(unittest.TestCase):
    def test_stacks_begin_with_the_outermost_caller(self):
        first = next(iter(flamegraph.stacks_of(SCRIPT)))
        self.assertEqual(first[0], 101)
        self.assertEqual([name for name, _ in first[1]], ["__libc_start", "main", "_ZN8chancery6settle17h0123456789abcdefE"])

    def test_only_processes_of_the_program_count_with_all_their_threads(self):
        stacks = flamegraph.folded(SCRIPT, "chancery")
        self.assertEqual(sum(stacks.values()), 2)
        self.assertIn(("fdatasync",), stacks)

    def test_rust_names_are_readable(self):
        stacks = flamegraph.demangled(flamegraph.folded(SCRIPT, "chancery"))
        self.assertIn(("__libc_start", "main", "chancery::settle"), stacks)


class Drawing(unittest.TestCase):
    def test_width_is_the_share_of_samples(self):
        tree = flamegraph.tree_of(Counter({("main", "a"): 3, ("main", "b"): 1}))
        widths = {name: width for _, _, width, name, _ in flamegraph.rectangles(tree, 0.1)}
        self.assertEqual(widths, {"all": 1200.0, "main": 1200.0, "a": 900.0, "b": 300.0})

    def test_file_is_valid_and_stays_below_its_limit(self):
        stacks = Counter({("main", f"f<{number}>", "g" * 80): 1 + number % 7 for number in range(3000)})
        text = flamegraph.small_svg("A & B", flamegraph.tree_of(stacks), 50_000)
        self.assertLessEqual(len(text.encode()), 50_000)
        ET.fromstring(text)


if __name__ == "__main__":
    unittest.main()
