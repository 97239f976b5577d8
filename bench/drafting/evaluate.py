#!/usr/bin/env python3
"""Drafts a letter for each of 30 meeting notes through the portal, scores the letters, and writes tables and the letters.

    bench/drafting/evaluate.py --label after smollm2-135m qwen2.5-coder-0.5b
    bench/drafting/evaluate.py --chancery /path/to/older/chancery --label before smollm2-135m
    bench/drafting/evaluate.py --label after mine=/path/to/model.gguf --only three-hours,late-report

A model is a name of `chancery model list`, the path of a GGUF file, or NAME=PATH. Each gets a server of its own on the loopback
interface, with an empty data folder. docs/benchmarks.md says what is measured.
"""

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import report  # noqa: E402
import scoring  # noqa: E402
from portal import WRITER, EvaluationError, Portal, model_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTES = pathlib.Path(__file__).resolve().parent / "notes.jsonl"
RESULTS = ROOT / "bench" / "results"
MAX_CONCURRENCY = 4
# A loop of 600 tokens on two cores with 1.5B weights stays below this.
LETTER_TIMEOUT_S = 240
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def main():
    arguments = parse(sys.argv[1:])
    notes = chosen_notes(read_notes(NOTES), arguments.only)
    RESULTS.mkdir(parents=True, exist_ok=True)
    # Part of the notes is a try: it prints, and leaves the stored results alone.
    is_whole = not arguments.only and arguments.max_output_tokens is None
    rows = report.stored_rows(RESULTS / "drafting.json") if is_whole else []
    for name, path in map(parse_model, arguments.models):
        row, results = evaluate(arguments, name, path, notes)
        if is_whole:
            page = RESULTS / report.letters_file(name, arguments.label)
            page.write_text(report.letters_page(row, notes, results), encoding="utf-8")
            progress(f"written: {page.relative_to(ROOT)}")
        else:
            print(report.letters_page(row, notes, results))
        rows = report.merged(rows, row)
        if is_whole:
            report.store(RESULTS / "drafting.json", rows)
    print(report.section(rows) if is_whole else report.table(rows))
    if arguments.write and is_whole:
        report.put(ROOT / "bench" / "RESULTS.md", report.section(rows))
        progress("written: bench/RESULTS.md")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a catalogue name, the path of a GGUF file, or NAME=PATH")
    parser.add_argument("--chancery", default=str(ROOT / "target" / "release" / "chancery"), help="the binary to measure")
    parser.add_argument("--label", choices=report.LABELS, required=True, help="which column of the comparison this run is")
    parser.add_argument("--revision", help="commit of the binary, for the results, if it is not this working tree's build")
    parser.add_argument("--concurrency", type=int, default=2, help=f"letters at a time, 1 to {MAX_CONCURRENCY}")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="ids of notes, with commas: prints, stores nothing")
    parser.add_argument("--letter-timeout", type=float, default=LETTER_TIMEOUT_S, help="seconds after which a letter counts as failed")
    parser.add_argument("--max-output-tokens", type=int, help="instead of the portal's own limit: prints, stores nothing")
    parser.add_argument("--context-tokens", type=int, help="context of the model, if memory is scarce")
    parser.add_argument("--write", action="store_true", help="also put the section into bench/RESULTS.md")
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.concurrency <= MAX_CONCURRENCY:
        parser.error(f"--concurrency {arguments.concurrency}: use 1 to {MAX_CONCURRENCY}")
    if arguments.letter_timeout <= 0:
        parser.error(f"--letter-timeout {arguments.letter_timeout:g}: use a number of seconds above 0")
    if not pathlib.Path(arguments.chancery).is_file():
        parser.error(f"--chancery {arguments.chancery}: no such file; build it with `cargo build --release -p chancery`")
    for model in arguments.models:
        name, _ = parse_model(model)
        if not MODEL_NAME.fullmatch(name):
            parser.error(f"model {model!r}: {name!r} is no name for a model; use NAME=PATH with letters, digits, dots and dashes")
    arguments.command = f"bench/drafting/evaluate.py {' '.join(shown_arguments(argv))}"
    return arguments


def shown_arguments(argv):
    """The command as others can repeat it: without paths of this machine."""
    shown, is_path = [], False
    for argument in argv:
        if is_path or argument == "--chancery" or argument.startswith("--chancery="):
            is_path = argument == "--chancery"
            continue
        name, path = parse_model(argument) if not argument.startswith("-") else (argument, None)
        shown.append(f"{name}=PATH" if path else argument)
    return shown


def parse_model(argument):
    """Returns the model's name and the path of its file, which is None for a catalogue name."""
    name, equals, path = argument.partition("=")
    if equals:
        return name, path
    if argument.endswith(".gguf") or "/" in argument:
        return pathlib.Path(argument).name.removesuffix(".gguf"), argument
    return argument, None


def read_notes(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def chosen_notes(notes, only):
    ids = [note["id"] for note in notes]
    if unknown := [name for name in only if name not in ids]:
        raise EvaluationError(f"--only {', '.join(unknown)}: no such note; there are {', '.join(ids)}")
    return [note for note in notes if not only or note["id"] in only]


def evaluate(arguments, name, path, notes):
    weights = model_file(arguments.chancery, name, path)
    progress(f"{name}, {arguments.label}: starting the server")
    with tempfile.TemporaryDirectory(prefix="chancery-drafting-") as folder:
        portal = Portal(arguments.chancery, pathlib.Path(folder), name, weights, notes, arguments.context_tokens)
        with portal, ThreadPoolExecutor(arguments.concurrency) as pool:
            began = time.monotonic()
            drafted = [pool.submit(one_letter, portal, note, arguments, began) for note in notes]
            try:
                results = [future.result() for future in drafted]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            wall_s = time.monotonic() - began
    run = {
        "day": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "revision": arguments.revision or revision(arguments.chancery),
        "command": arguments.command,
        "concurrency": arguments.concurrency,
        "wall_s": wall_s,
    }
    row = report.summary(name, arguments.label, run, results)
    row["shown"] = report.shown_letters(notes, results)
    progress(f"{name}, {arguments.label}: {row['usable']} of {row['letters']} usable, {wall_s:.0f} s")
    return row, results


def one_letter(portal, note, arguments, began):
    draft = portal.draft(note, arguments.letter_timeout, arguments.max_output_tokens)
    score = scoring.score(draft, note, WRITER, datetime.date.today())
    outcome = "usable" if score.is_usable else ", ".join(score.failures)
    progress(f"  {time.monotonic() - began:5.0f} s  {note['id']}: {outcome} ({draft.output_tokens} tokens, {draft.seconds:.1f} s)")
    return draft, score


def cpu():
    """The processor, in the words of the other benchmarks."""
    count = len(re.findall(r"^processor\s*:", text := cpuinfo(), re.M)) or 1
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return f"{count} cores of {model.group(1) if model else 'an unknown processor'}"


def cpuinfo():
    try:
        return pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def revision(binary):
    """The commit of this working tree for its own build, otherwise the version that the binary reports."""
    is_own = ROOT / "target" in pathlib.Path(binary).resolve().parents
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"] if is_own else [binary, "--version"]
    told = subprocess.run(command, capture_output=True, text=True)
    return told.stdout.strip().removeprefix("chancery ") or "an unknown version"


def progress(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except EvaluationError as error:
        sys.exit(f"evaluate.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
