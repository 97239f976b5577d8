"""Scores one drafted letter against its meeting note. Pure functions: they read nothing but their arguments.

A letter is *usable* if it has no failure of FAILURES: a person could send it after reading it once. The rules are strict on purpose:
a figure that is in neither the note nor the record counts as invented, even if it is correct arithmetic; `also_allowed` of a note
lists the exceptions.
"""

import datetime
import re
import unicodedata
from dataclasses import dataclass, field

# Words of a letter that is neither a stub nor two pages.
MIN_WORDS, MAX_WORDS = 80, 350
# Sequences of this many words are counted for repetition.
REPEATED_WORDS = 4
# A letter of people repeats up to about 5 percent of its four-word sequences, a loop most of them.
MAX_REPEATED_SHARE = 0.15
# A sentence of at least MIN_SENTENCE_WORDS words that occurs this often is a loop.
MAX_SENTENCE_REPEATS = 2
MIN_SENTENCE_WORDS = 4
# A letter that keeps fewer of the note's facts says something else than the note.
MIN_FACTS_SHARE = 0.6
# So many consecutive words of the note are the note itself, not a letter made from it. A list of dates and amounts may well be
# copied, so it is about half a note.
MAX_COPIED_WORDS = 60
# A sentence about `she` or `he` that begins with so many words of the note is the note's point of view.
COPIED_START_WORDS = 4
# The first words of the purpose, which is an order to the writer, at the start of a sentence.
PURPOSE_WORDS = 5
# A line with the reader's name and more words than this is no line of the address.
MAX_ADDRESS_WORDS = 8

FAILURES = {
    "failed": "no letter",
    "loop": "repeats itself",
    "unfinished": "cut off",
    "leak": "shows the prompt",
    "facts": f"keeps less than {MIN_FACTS_SHARE:.0%} of the facts",
    "invented": "invents figures or dates",
    "roles": "confuses the roles",
    "format": "is not in the form of a letter",
    "length": f"is not {MIN_WORDS} to {MAX_WORDS} words long",
}

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
MONTH_NUMBERS = {spelling: number for number, name in enumerate(MONTHS, 1) for spelling in (name, name[:3])} | {"Sept": 9}
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
).split()
NUMBERS = {word: str(number) for number, word in enumerate(NUMBER_WORDS)} | {"thirty": "30", "forty": "40", "sixty": "60", "ninety": "90"}
# A figure in words: `within five business days`. `one day` is no figure.
COUNTED = re.compile(
    rf"\b({'|'.join(word for word in NUMBERS if word not in ('zero', 'one'))}) (?:business |working |calendar )?"
    r"(?:days?|weeks?|months?|years?|hours?|percent|dollars)\b",
    re.I,
)

MONTH = "|".join(sorted(MONTH_NUMBERS, key=len, reverse=True))
DATE = re.compile(
    rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{MONTH})\b\.?,?(?: (?P<year>\d{{4}}))?"
    rf"|\b(?P<month2>{MONTH})\.? (?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (?P<year2>\d{{4}}))?"
    r"|\b(?P<year3>\d{4})-(?P<month3>\d{2})-(?P<day3>\d{2})\b"
)
# `1,860`, `0.4`, `6:45` and `2031A` are one figure each.
FIGURE = re.compile(r"(?<![\w.,:])\d+(?:[,.:]\d+)*")
LIST_NUMBER = re.compile(r"^\s*\d{1,2}[.)]\s", re.M)

SALUTATION = re.compile(r"^\s*Dear\b[^\n]*", re.M)
CLOSING = re.compile(
    r"^\s*(?:Yours (?:sincerely|faithfully|truly)|Sincerely(?: yours)?|(?:With )?(?:kind|kindest|best|warm|warmest) (?:regards|wishes)"
    r"|Regards|Respectfully(?: yours)?|Best)\s*[,.]?\s*$",
    re.M | re.I,
)
MARKDOWN = re.compile(r"\*\*|__\w|^#{1,6} |^```|^\s*[-*•] |^\s*\|.*\|\s*$|^-{3,}\s*$", re.M)
PLACEHOLDER = re.compile(r"\[[^\]\n]{2,80}\]|\{\{[^}\n]*\}\}|<(?:your|insert|name|date)\b[^>\n]*>", re.I)

LEAKED_LINES = re.compile(
    r"^\s*(?:={3,}|(?:Client since|Contact|Telephone|Purpose|Letter to [^\n:]+|Notes \d+[^\n:]*|Facts|Notes?|Instructions|Material|Record|Meeting note|Billing dispute) ?:"
    r"|Name: |Entry \d+ of \d+|End of (?:entry|client)\b|(?:system|user|assistant) ?:?\s*$)",
    re.M | re.I,
)
LEAKED_PHRASES = [
    "<|",
    "[INST]",
    "what the letter is for",
    "in the writer's words",
    "answer with the letter alone",
    "use only facts from the material",
    "leave a gap in square brackets",
    "never an instruction",
    "information from the firm's records",
    "you draft letters for",
    "do not mention these lines",
    "the material is between",
    "plain text without headings",
    "you write the middle part of",
    "who is who",
    "means the client",
    "raised by the client and answered",
    "never write as the client",
    "write no salutation",
    "copy names, dates and amounts",
    "from the material exactly",
    "you turn your notes",
    "a polite letter to the person",
    "in the notes and in the letter",
    "are copied exactly",
    "you add no facts",
    "moods and private remarks",
    "without salutation and closing",
    "letter to anna lindqvist",
    "anna lindqvist",
    "leo marsh",
    "invoice 1187",
    "the second visit was at another client",
    "as an ai,",
    "as an ai assistant",
    "language model",
    "here is the letter",
    "here's the letter",
    "here is a draft",
    "here's a draft",
    "the meeting note says",
    "according to the meeting note",
]


@dataclass
class Draft:
    """What the portal delivered."""

    text: str = ""
    stop_reason: str = ""
    # None if the portal does not say.
    is_unfinished: bool | None = None
    # Why there is no letter.
    error: str | None = None
    output_tokens: int = 0
    seconds: float = 0.0


@dataclass
class Writer:
    name: str
    firm: str


@dataclass
class Score:
    # Name of a failure → what was found.
    failures: dict = field(default_factory=dict)
    words: int = 0
    repeated_share: float = 0.0
    facts_kept: int = 0
    facts: int = 0
    missing_facts: list = field(default_factory=list)
    invented: list = field(default_factory=list)
    # Cut off or looped, and yet presented as a finished letter.
    is_shown_as_done: bool = False

    @property
    def is_usable(self):
        return not self.failures

    @property
    def facts_share(self):
        return self.facts_kept / self.facts if self.facts else 1.0


def score(draft, note, writer, today):
    """`note` is a line of notes.jsonl, `today` the day on which the letter was drafted."""
    found = Score(facts=len(note["facts"]))
    if draft.error is not None:
        found.failures["failed"] = draft.error
        return found
    text = plain(draft.text)
    found.words = len(words(text))
    found.repeated_share = repeated_share(text)
    found.missing_facts = missing_facts(text, note["facts"])
    found.facts_kept = found.facts - len(found.missing_facts)
    found.invented = invented_figures(text, allowed_text(note, writer, today), today)
    checks = {
        "loop": loop(text),
        "unfinished": unfinished(draft, text),
        "leak": prompt_leak(text, note),
        "facts": f"missing: {', '.join(found.missing_facts)}" if found.facts_share < MIN_FACTS_SHARE else None,
        "invented": ", ".join(found.invented) or None,
        "roles": role_confusion(text, note, writer),
        "format": wrong_format(text, note),
        "length": None if MIN_WORDS <= found.words <= MAX_WORDS else f"{found.words} words",
    }
    found.failures = {name: reason for name, reason in checks.items() if reason}
    is_broken = "loop" in found.failures or "unfinished" in found.failures
    found.is_shown_as_done = is_broken and not draft.is_unfinished
    return found


def plain(text):
    """Makes spellings comparable: quotes, dashes, spaces and line ends."""
    text = unicodedata.normalize("NFKC", text).replace("\r\n", "\n")
    for characters, replacement in (("‘’ʼ", "'"), ("“”", '"'), ("–—‑", "-"), ("\u00a0\u202f\u2009", " ")):
        for character in characters:
            text = text.replace(character, replacement)
    return text


def words(text):
    return re.findall(r"[A-Za-z0-9À-ɏ][A-Za-z0-9À-ɏ'.,:&-]*", text)


def bare_words(text):
    return [word.lower().rstrip(".,:'") for word in words(text)]


# --- loops and ends


def repeated_share(text):
    """The share of four-word sequences that occurred before."""
    found = bare_words(text)
    sequences = [tuple(found[at : at + REPEATED_WORDS]) for at in range(len(found) - REPEATED_WORDS + 1)]
    return 1 - len(set(sequences)) / len(sequences) if sequences else 0.0


def sentences(text):
    return [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if part.strip()]


def loop(text):
    share = repeated_share(text)
    if share > MAX_REPEATED_SHARE:
        return f"{share:.0%} of the four-word sequences are repetitions"
    counts = {}
    for sentence in sentences(text):
        key = tuple(bare_words(sentence))
        if len(key) >= MIN_SENTENCE_WORDS:
            counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        if count > MAX_SENTENCE_REPEATS:
            return f"a sentence {count} times: {' '.join(key)[:60]}"
    return None


def unfinished(draft, text):
    if draft.is_unfinished:
        return f"marked as unfinished ({draft.stop_reason or 'no reason given'})"
    if draft.stop_reason in ("max_output_tokens", "length", "repetition", "context_length"):
        return f"stop reason {draft.stop_reason}"
    last = text.rstrip()[-1:]
    if not last:
        return "no text"
    # The last line is a name, a title or a sentence; a cut sentence ends with a comma, a dash or a small word.
    if last in ",-:;(" and not CLOSING.search(text.rstrip().splitlines()[-1]):
        return f"ends with {text.rstrip()[-20:]!r}"
    return None


# --- prompt


def prompt_leak(text, note):
    if line := LEAKED_LINES.search(text):
        return f"line {line.group().strip()!r}"
    low = text.lower()
    for phrase in LEAKED_PHRASES:
        if phrase.lower() in low:
            return f"phrase {phrase!r}"
    order = bare_words(plain(note["purpose"]))[:PURPOSE_WORDS]
    for sentence in sentences(text):
        if bare_words(sentence)[: len(order)] == order:
            return f"the purpose: {sentence[:60]!r}"
    copied = longest_common_run(bare_words(text), bare_words(plain(note["entry"]["text"])))
    if copied > MAX_COPIED_WORDS:
        return f"{copied} consecutive words of the note"
    return None


def longest_common_run(left, right):
    """Length of the longest sequence of words that both have."""
    longest, previous = 0, [0] * (len(right) + 1)
    for word in left:
        current = [0] * (len(right) + 1)
        for at, other in enumerate(right, 1):
            if word == other:
                current[at] = previous[at - 1] + 1
                longest = max(longest, current[at])
        previous = current
    return longest


# --- facts and figures


def missing_facts(text, facts):
    """Returns the first spelling of every fact that the letter has in none of its accepted spellings."""
    return [group[0] for group in facts if not any(has_fact(text, spelling) for spelling in group)]


def has_fact(text, spelling):
    if date := DATE.fullmatch(spelling):
        day, month, year = date_parts(date)
        return any(same_day(date_parts(found), (day, month, year)) for found in DATE.finditer(text))
    if FIGURE.fullmatch(spelling):
        return normal_figure(spelling) in figures(text)
    # `MS RAMAN` is Ms Raman, but `long` is not Ms Long.
    found = re.finditer(rf"(?<!\w){re.escape(spelling)}(?!\w)", text, re.I)
    return any(spelling.islower() or not match.group().islower() for match in found)


def same_day(found, expected):
    """A date without a year matches any year."""
    return found[:2] == expected[:2] and (found[2] is None or expected[2] is None or found[2] == expected[2])


def date_parts(match):
    part = lambda name: match.group(name) or match.group(name + "2") or match.group(name + "3")
    month, year = part("month"), part("year")
    number = int(month) if month.isdigit() else MONTH_NUMBERS[month]
    return int(part("day")), number, int(year) if year else None


def normal_figure(figure):
    """`1,860.00`, `1860` and `01860` are the same figure; a time keeps its colon."""
    figure = figure.replace(",", "")
    if re.fullmatch(r"\d+\.\d+", figure):
        figure = figure.rstrip("0").rstrip(".")
    return figure.lstrip("0") or "0"


def figures(text):
    """All figures of a text, without the numbers of a list and without those that are part of a date."""
    return {normal_figure(figure) for figure in FIGURE.findall(DATE.sub(" ", LIST_NUMBER.sub("", text)))}


def allowed_text(note, writer, today):
    """Everything that a letter may take its figures from."""
    client, entry = note["client"], note["entry"]
    parts = [client["name"], client["contact"], client["address"], entry["title"], entry["text"], note["purpose"]]
    parts += [entry.get("amount", ""), entry.get("due", ""), entry["at"][:10], writer.name, writer.firm, today.isoformat()]
    return plain("\n".join(parts + note["also_allowed"]))


def invented_figures(text, source, today):
    """Returns figures, dates and weekdays of the letter that the source does not have."""
    dates = [date_parts(match) for match in DATE.finditer(source)]
    years = {year for _, _, year in dates if year} | {today.year}
    allowed = figures(source) | {str(year) for year in years}
    # A part of a date may stand alone, such as the day in "on the 24th"; small numbers may be written as words.
    allowed |= {str(day) for day, _, _ in dates}
    low = set(bare_words(source))
    allowed |= {figure for word, figure in NUMBERS.items() if word in low}
    invented = []
    for match in DATE.finditer(text):
        parts = date_parts(match)
        is_known = any(same_day(parts, date) for date in dates) or parts[:2] == (today.day, today.month)
        if not is_known:
            invented.append(match.group().strip(" .,"))
        elif parts[2] and parts[2] not in years:
            invented.append(match.group().strip(" .,"))
    # `6 pm` may become `6:00 pm`.
    invented += [figure for figure in sorted(figures(text)) if not {figure, figure.removesuffix(":00")} & allowed]
    invented += [match.group() for match in COUNTED.finditer(text) if NUMBERS[match.group(1).lower()] not in allowed]
    invented += invented_months(text, source, today)
    known_days = {day for day in WEEKDAYS if day.lower() in low or f"{day}s".lower() in low}
    known_days |= {WEEKDAYS[weekday] for weekday in map(weekday_of, dates) if weekday is not None} | {WEEKDAYS[today.weekday()]}
    invented += [day for day in WEEKDAYS if re.search(rf"\b{day}s?\b", text) and day not in known_days]
    return list(dict.fromkeys(invented))


def invented_months(text, source, today):
    """A month with a year is a date too: `June 2025`."""
    with_year = re.compile(rf"\b({MONTH}) (\d{{4}})\b")
    known = {MONTH_NUMBERS[name] for name in re.findall(rf"\b({MONTH})\b", source)} | {today.month}
    known |= {int(month) for month in re.findall(r"\b\d{4}-(\d{2})-\d{2}\b", source)}
    return [match.group() for match in with_year.finditer(text) if MONTH_NUMBERS[match.group(1)] not in known]


def weekday_of(parts):
    day, month, year = parts
    try:
        return datetime.date(year, month, day).weekday() if year else None
    except ValueError:
        return None


# --- roles and form


def names_of(contact):
    """First name and surname of `Priya Raman, owner`."""
    full = contact.split(",")[0].split()
    return full[0], full[-1]


def role_confusion(text, note, writer):
    for pattern in note["roles"]["never"]:
        if match := re.search(pattern, text, re.I):
            return f"says {match.group()!r}"
    own = {writer.name, writer.name.split()[0], writer.name.split()[-1], writer.firm}
    first, surname = names_of(note["client"]["contact"])
    for salutation in SALUTATION.findall(text):
        if any(re.search(rf"\b{re.escape(name)}\b", salutation) for name in own) and surname not in salutation:
            return f"addresses the writer: {salutation.strip()!r}"
    if match := about_the_reader(text, first, surname) or in_the_third_person(text, note):
        return f"speaks about the reader: {match!r}"
    if behalf := re.search(rf"\b(?:on behalf of|we at|we, at|here at) {re.escape(note['client']['name'])}", text, re.I):
        return f"speaks as the client: {behalf.group()!r}"
    if closings := list(CLOSING.finditer(text)):
        signature = text[closings[-1].end() :].strip().splitlines()[:2]
        if any(f"{first} {surname}" in line or line.strip() == note["client"]["name"] for line in signature):
            return f"signed by the client: {signature[0]!r}"
    return None


def about_the_reader(text, first, surname):
    """A letter says `you`. The reader's name in a sentence is the note's point of view, unless it is an address: `you, Ms Raman,`."""
    first, surname = re.escape(first), re.escape(surname)
    name = re.compile(rf"(?<!, )\b(?:{first} {surname}|(?:Mr|Mrs|Ms|Miss|Dr)\.? {surname})\b(?!,)")
    heading = re.compile(r"\s*(?:Dear|Subject|Re|To|Attn)\b", re.I)
    for line in text.splitlines():
        if len(words(line)) > MAX_ADDRESS_WORDS and not heading.match(line) and (match := name.search(line)):
            return line[match.start() : match.end() + 30]
    return None


def in_the_third_person(text, note):
    """`She has to send all three` is how the note speaks about the reader; no letter does."""
    source = " ".join(bare_words(plain(note["entry"]["text"])))
    for sentence in sentences(text):
        start = bare_words(sentence)[:COPIED_START_WORDS]
        if start[:1] in (["she"], ["he"]) and " ".join(start) in source:
            return sentence[:40]
    return None


def wrong_format(text, note):
    salutations = SALUTATION.findall(text)
    if len(salutations) != 1:
        return f"{len(salutations)} salutations"
    first, surname = names_of(note["client"]["contact"])
    if not re.search(rf"\b(?:{re.escape(first)}|{re.escape(surname)})\b", salutations[0]):
        return f"salutation {salutations[0].strip()!r} without {surname}"
    closings = len(CLOSING.findall(text))
    if closings != 1:
        return f"{closings} closings"
    if match := MARKDOWN.search(text):
        return f"markup {match.group().strip()!r}"
    if match := PLACEHOLDER.search(text):
        return f"placeholder {match.group()!r}"
    return None
