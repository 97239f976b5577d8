"""The evaluation's figures as tables, and the letters as Markdown pages. Pure, except `put` and `store`, which write files."""

import json
import statistics

from scoring import FAILURES

BEGIN = "<!-- bench-drafting: begin (written by the evaluation; do not edit) -->"
END = "<!-- bench-drafting: end -->"
# Letters of each model that RESULTS.md shows in full; the others are in the linked page.
SHOWN_LETTERS = 2
LABELS = ["before", "after"]


def summary(model, label, run, results):
    """Sums up one model. `results` are pairs of a draft and its score; `run` has the day, the machine and the command."""
    drafts, scores = zip(*results)
    letters = [score for draft, score in results if draft.error is None]
    tokens = sum(draft.output_tokens for draft in drafts)
    return {
        "model": model,
        "label": label,
        **run,
        "letters": len(results),
        "usable": sum(score.is_usable for score in scores),
        "failures": {name: sum(name in score.failures for score in scores) for name in FAILURES},
        "shown_as_done": sum(score.is_shown_as_done for score in scores),
        "facts_kept": sum(score.facts_kept for score in scores) / max(1, sum(score.facts for score in scores)),
        "median_repeated": median(score.repeated_share for score in letters),
        "median_words": median(score.words for score in letters),
        "median_s": median(draft.seconds for draft in drafts if draft.error is None),
        "tokens_per_s": tokens / run["wall_s"] if run["wall_s"] > 0 else 0.0,
    }


def median(values):
    values = list(values)
    return statistics.median(values) if values else 0.0


def merged(stored, new):
    """Replaces earlier results of the same model and label, and sorts: models in the order of their first run, before and after."""
    results = [row for row in stored if (row["model"], row["label"]) != (new["model"], new["label"])] + [new]
    models = list(dict.fromkeys(row["model"] for row in stored + [new]))
    return sorted(results, key=lambda row: (models.index(row["model"]), LABELS.index(row["label"])))


def table(rows):
    head = ["Model", "", "Usable", "Facts kept", *(name.capitalize() for name in FAILURES), "Shown as done", "Words", "Repeated", "s", "Tokens/s"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        count = row["letters"]
        cells = [row["model"], row["label"], f"**{row['usable']}/{count}**", f"{row['facts_kept']:.0%}"]
        cells += [str(row["failures"][name]) for name in FAILURES]
        cells += [str(row["shown_as_done"]), f"{row['median_words']:.0f}", f"{row['median_repeated']:.0%}"]
        cells += [f"{row['median_s']:.1f}", f"{row['tokens_per_s']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def letters_page(row, notes, results):
    """All letters of one model, each after its note, with what is wrong with it."""
    label = row["label"]
    parts = [
        f"# Letters drafted by {row['model']}, {label}",
        f"{row['usable']} of {row['letters']} usable. {run_text(row)}",
        table([row]),
    ]
    for note, (draft, score) in zip(notes, results):
        parts.append(f"## {note['id']}: {note['entry']['title']}")
        parts.append(f"To {note['client']['contact']}, {note['client']['name']}. Purpose: {note['purpose']}")
        parts.append(quoted(note["entry"]["text"]))
        parts.append(verdict(draft, score))
        if draft.text:
            parts.append(fenced(draft.text))
    return "\n\n".join(parts) + "\n"


def verdict(draft, score):
    figures = f"{score.words} words, {score.facts_kept} of {score.facts} facts, {draft.seconds:.1f} s, {draft.output_tokens} tokens"
    if score.is_usable:
        return f"**Usable.** {figures}."
    reasons = "; ".join(f"{FAILURES[name]}: {one_line(reason)}" for name, reason in score.failures.items())
    return f"**Not usable**: {reasons}. {figures}."


def one_line(text):
    return " ".join(str(text).split()).replace("|", "\\|")[:200]


def quoted(text):
    return "\n".join(f"> {line}" for line in text.splitlines())


def fenced(text):
    """A letter may have any line in it, even one that ends a code block."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}text\n{text.strip()}\n{ticks}"


def run_text(row):
    return f"{row['day']}, {row['cpu']}, Chancery at {row['revision']}, {row['concurrency']} at a time. Command: `{row['command']}`."


def letters_file(model, label):
    """The name of the page with all letters, under bench/results/."""
    return f"letters-{model}.md" if label == "after" else f"letters-{model}-{label}.md"


def section(rows):
    """The block for RESULTS.md: the table, how it was measured, and the first letters of each model."""
    parts = [table(rows)]
    parts.append(
        "Columns count letters out of all: " + "; ".join(f"*{name}*: {text}" for name, text in FAILURES.items()) + ". "
        "*Shown as done*: looped or cut off, and not marked as unfinished. *Words*, *Repeated* (share of four-word sequences that "
        "occurred before) and *s* (seconds for a letter) are medians."
    )
    parts.append("\n".join(f"- {row['model']}, {row['label']}: {run_text(row)}" for row in rows))
    for row in rows:
        page = letters_file(row["model"], row["label"])
        parts.append(f"### Letters by {row['model']}, {row['label']}")
        parts.append(f"All {row['letters']}: [{page}](results/{page}).")
        for letter in row.get("shown", []):
            parts.append(f"To {letter['contact']}. Purpose: {letter['purpose']}")
            parts.append(letter["verdict"])
            parts.append(fenced(letter["text"]) if letter["text"] else "No text.")
    return "\n\n".join(parts)


def shown_letters(notes, results):
    """The same notes for every model, so that readers can compare."""
    return [
        {"contact": note["client"]["contact"], "purpose": note["purpose"], "verdict": verdict(draft, score), "text": draft.text}
        for note, (draft, score) in list(zip(notes, results))[:SHOWN_LETTERS]
    ]


def replaced(page, text):
    """Returns the page with the text between the two marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError("the page lacks the marks of the drafting evaluation, or has them twice")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def put(path, text):
    path.write_text(replaced(path.read_text(encoding="utf-8"), text), encoding="utf-8")


def stored_rows(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def store(path, rows):
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
