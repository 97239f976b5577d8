"""Tests Chancery with a real engine: compares replies with and without Chancery, and every token count with the engine's own.

Starts the engine, and Chancery in front of it with an empty data directory, and runs the cases below. Prints a table of the
results, and exits with 1 if anything differs from docs/upstream.md. `scripts/upstream-engines` calls it.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf_tokenizer
from processes import Chancery, LlamaServer, Vllm, eventually

# Instructions, input, output cap.
ASKED = [
    ("Answer in one short sentence.", "What is a ledger?", 64),
    ("You are a helpful assistant.", "Say hello.", 24),
    ("", "What is the capital of France?", 48),
    ("Answer in one word.", "Is the sky blue? Über ça, naïve — 1234567 €.", 16),
    ("Write a letter.", "Dear Ruth,\n\n\tthe invoice 2026-114 of £1,204.50 is due.\r\n   Kind regards", 64),
    ("Du antwortest auf Deutsch.", "Was ist ein Vertrag? 日本語も少し。", 40),
    ("Instructions only.", "", 8),
    ("List three fruits.", "fruits", 1),
]
# The model repeats itself endlessly on this prompt.
ENDLESS = ("Translate to French.", "")
ENDLESS_CAP = 1500
REPETITION_PENALTY = 1.3
DRY = {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2}
OPENAI_PENALTIES = {"frequency_penalty": 0.5, "presence_penalty": 0.5}
TOP_LOGPROBS = 3
AT_ONCE = 24
# Tokens of a character cut off by a cap, which appear in no text (docs/upstream.md).
CUT_CHARACTER_TOKENS = 3
LOAD_S = 20
KILL_AFTER_S = 5
CALLERS = 8


class Table:
    def __init__(self):
        self.rows, self.differences = [], []

    def row(self, case, requests, seen):
        self.rows.append((case, str(requests), seen))
        print(f"  {case}: {seen}", file=sys.stderr)

    def check(self, is_so, message):
        if not is_so:
            self.differences.append(message)
            print(f"  DIFFERS: {message}", file=sys.stderr)
        return is_so

    def print(self, heading):
        print(f"\n{heading}\n\n| Case | Requests | Seen |\n|---|---|---|")
        for row in self.rows:
            print(f"| {' | '.join(row)} |")
        for difference in self.differences:
            print(f"DIFFERS: {difference}")


class Held:
    """Chancery in front of an engine, with the totals of its replies."""

    def __init__(self, chancery, engine, table):
        self.chancery, self.engine, self.table = chancery, engine, table
        self.lock = threading.Lock()
        self.billed = {}

    def note(self, reply):
        usage = reply["usage"]
        row = (1, usage["input_tokens"], usage["output_tokens"])
        with self.lock:
            before = self.billed.get(reply["model"], (0, 0, 0))
            self.billed[reply["model"]] = tuple(map(sum, zip(before, row, strict=True)))

    def good(self, model, instructions, text, cap, **more):
        status, reply = self.chancery.generate(model, instructions, text, cap, **more)
        if status != 200:  # nothing to compare
            raise RuntimeError(f"{model}, {text!r}: {status} {reply}")
        self.note(reply)
        return reply

    def check_counts(self, asked, reply):
        instructions, text, cap = asked
        usage, said, why = reply["usage"], reply["output_text"], reply["stop_reason"]
        tokens_in = self.engine.count(instructions) + self.engine.count(text)
        are_same = self.table.check(usage["input_tokens"] == tokens_in, f"{text!r}: {usage}, and the engine counts {tokens_in} in")
        surplus = usage["output_tokens"] - self.engine.count(said)
        allowed = range(CUT_CHARACTER_TOKENS + 1) if why == "max_output_tokens" else range(1)
        is_within = surplus in allowed and usage["output_tokens"] <= cap
        return self.table.check(is_within, f"{text!r}: {usage}, {why}, {surplus} too many out") and are_same

    def plain(self):
        same_text = same_count = same_usage = 0
        for asked in ASKED:
            counted, believed = self.good("counted", *asked), self.good("believed", *asked)
            direct, usage, _ = self.engine.chat(*asked)
            same_count += self.check_counts(asked, counted)
            self.table.check(counted["output_text"] == believed["output_text"], f"{asked}: two texts for one request")
            same_text += direct == counted["output_text"]
            seen = (believed["usage"]["input_tokens"], believed["usage"]["output_tokens"])
            self.table.check(seen[0] == usage[0], f"{asked}: {seen[0]} tokens in, and the engine's usage is {usage[0]}")
            if direct == believed["output_text"]:
                same_usage += self.table.check(seen == usage, f"{asked}: {seen}, and the engine's usage is {usage}")
        count = len(ASKED)
        seen = f"text as without Chancery {same_text}/{count}; with `tokenizer`, tokens as the engine's `/tokenize` {same_count}/{count}"
        self.table.row("plain", 2 * count, f"{seen}; without, as its `usage` {same_usage}/{same_text}")

    def streamed(self):
        for asked in ASKED:
            plain = self.good("counted", *asked)
            stream = self.chancery.stream("counted", *asked)
            said, name, reply = stream.whole()
            self.table.check(stream.status == 200 and reply is not None, f"{asked}: the stream ended with {name}")
            if reply is None:
                continue
            self.note(reply)
            for field in ("output_text", "stop_reason"):
                self.table.check(reply[field] == plain[field], f"{asked}: streamed {field} is {reply[field]!r}, else {plain[field]!r}")
            both = [{name: told["usage"][name] for name in ("input_tokens", "output_tokens")} for told in (reply, plain)]
            self.table.check(both[0] == both[1], f"{asked}: streamed {both[0]}, else {both[1]}")
            self.table.check(said == reply["output_text"], f"{asked}: the pieces are not the text")
        self.table.row("stream", 2 * len(ASKED), "pieces, text, ending and tokens as without `stream`")

    def hang_up(self):
        seen = []
        for model in ("counted", "believed"):
            before = self.chancery.usage(model)
            stream = self.chancery.stream(model, *ENDLESS, ENDLESS_CAP)
            said, pieces = "", 0
            for name, data in stream.events():
                if name == "response.output_text.delta":
                    said, pieces = said + data["delta"], pieces + 1
                if pieces == 5:
                    break
            least = self.engine.count(said) if model == "counted" else pieces
            seen.append(self.hang_up_of(model, stream, before, range(least, 500)))
        self.table.row("hang-up after 5 pieces of 1,500 tokens", 2, "; ".join(seen))

    def hang_up_before_a_whole_reply(self):
        seen = []
        for model in ("counted", "believed"):
            before = self.chancery.usage(model)
            request = self.chancery.send(model, *ENDLESS, ENDLESS_CAP)
            eventually("the engine generates", 30, lambda: self.engine.generated() >= 1)
            least = self.engine.generated()
            seen.append(self.hang_up_of(model, request, before, range(least, ENDLESS_CAP)))
        self.table.row("hang-up before a whole reply of 1,500 tokens", 2, "; ".join(seen))

    def hang_up_of(self, model, request, before, expected):
        """Hangs up, and checks that the engine stops, and how many tokens are billed."""
        request.hang_up()
        began = time.monotonic()
        eventually("the engine stops", 30, lambda: self.engine.running() == 0)
        idle_s = time.monotonic() - began
        eventually("it is billed", 10, lambda: self.chancery.usage(model)[0] == before[0] + 1)
        row = tuple(now - then for now, then in zip(self.chancery.usage(model), before, strict=True))
        self.table.check(row[2] in expected, f"a hang-up after {expected.start} tokens bills {row[2]}")
        prompt = sum(map(self.engine.count, ENDLESS))
        # An engine that reports counts throughout has already reported the prompt's, including the template. Otherwise its
        # `/tokenize` counts the prompt.
        is_right = row[1] == prompt if model == "counted" else row[1] >= prompt
        self.table.check(is_right, f"a hang-up bills {row[1]} tokens in, and the prompt has {prompt}")
        self.billed[model] = tuple(map(sum, zip(self.billed[model], row, strict=True)))
        return f"{model}: engine idle after {idle_s:.1f} s, billed {row[1]} + {row[2]}"

    def many_at_once(self):
        with ThreadPoolExecutor(AT_ONCE) as callers:
            asked = [(f"Answer in {number} words.", "What is a ledger?", 32) for number in range(AT_ONCE)]
            began = time.monotonic()
            replies = list(callers.map(lambda one: (one, self.good("counted", *one)), asked))
            took_s = time.monotonic() - began
        same = sum(self.check_counts(one, reply) for one, reply in replies)
        self.table.row("many at once", AT_ONCE, f"all 200 in {took_s:.0f} s, tokens as the engine's `/tokenize` {same}/{AT_ONCE}")

    def stop_strings(self):
        instructions, text, cap = ASKED[0]
        whole = self.good("counted", instructions, text, cap)["output_text"]
        stop = " " + whole.split()[6]
        reply = self.good("counted", instructions, text, cap, stop=[stop])
        cut = whole[: whole.index(stop)]
        self.table.check(reply["output_text"] == cut, f"stop {stop!r}: {reply['output_text']!r} instead of {cut!r}")
        expected = "stop_sequence" if self.engine.says_what_stopped_it else "complete"
        self.table.check(reply["stop_reason"] == expected, f"stop {stop!r}: stop_reason is {reply['stop_reason']}")
        self.check_counts((instructions, text, cap), reply)
        self.table.row("stop string", 2, f"cut before it, `stop_reason` {reply['stop_reason']}")

    def penalties(self):
        """Compares each penalty with the same one sent without Chancery, under the engine's own name."""
        sent = [
            ({"repetition_penalty": REPETITION_PENALTY}, self.engine.repetition_penalty(REPETITION_PENALTY)),
            (OPENAI_PENALTIES, OPENAI_PENALTIES),
        ]
        if self.engine.knows_dry:
            sent.append((DRY, DRY | {"dry_penalty_last_n": -1}))
        asked = (*ENDLESS, 128)
        unpenalized = self.good("counted", *asked)["output_text"]
        same = 0
        for ours, theirs in sent:
            reply = self.good("counted", *asked, **ours)
            self.check_counts(asked, reply)
            self.table.check(reply["output_text"] != unpenalized, f"{ours} has no effect")
            same += reply["output_text"] == self.engine.chat(*asked, **theirs)[0]
        seen = f"text as without Chancery {same}/{len(sent)}, and unlike the text without penalties"
        if not self.engine.knows_dry:
            status, reply = self.chancery.generate("counted", *asked, **DRY)
            is_named = status == 400 and "`dry_multiplier`" in reply["error"]["reason"]
            self.table.check(is_named, f"DRY is answered with {status} {reply}")
            seen += "; DRY, which the engine would ignore, 400 with the field's name"
        self.table.row("penalties", 1 + 2 * len(sent), seen)

    def logprobs(self):
        asked = ASKED[0]
        plain = self.good("counted", *asked)
        reply = self.good("counted", *asked, logprobs=True, top_logprobs=TOP_LOGPROBS)
        self.table.check(reply["output_text"] == plain["output_text"], "log probabilities change the text")
        entries = reply["logprobs"]
        text = b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace")
        self.table.check(text == reply["output_text"], f"the tokens are {text!r}, and the text is {reply['output_text']!r}")
        for entry in entries:
            top = [alternative["logprob"] for alternative in entry["top_logprobs"]]
            is_sorted = len(top) == TOP_LOGPROBS and top == sorted(top, reverse=True)
            self.table.check(is_sorted and entry["logprob"] <= 0, f"log probabilities {entry}")
        self.table.row("log probabilities", 2, f"{len(entries)} tokens, together the text, each with {TOP_LOGPROBS} alternatives")

    def loop(self):
        """The engine would repeat itself up to the cap."""
        seen = []
        for model in ("counted", "believed"):
            reply = self.good(model, *ENDLESS, ENDLESS_CAP, stop_on_repetition=True)
            tokens = reply["usage"]["output_tokens"]
            self.table.check(reply["stop_reason"] == "repetition", f"{model}: a loop ends with {reply['stop_reason']}")
            if model == "counted":
                self.check_counts((*ENDLESS, ENDLESS_CAP), reply)
            eventually("the engine stops", 30, lambda: self.engine.running() == 0)
            seen.append(f"{model}: ended after {tokens} of {ENDLESS_CAP} tokens")
        self.table.row("reply that loops, `stop_on_repetition`", 2, "; ".join(seen))

    def too_long(self):
        codes = []
        for model in ("counted", "overrated"):  # rejected here, and by the engine
            status, reply = self.chancery.generate(model, "", "word " * 5000, 8)
            codes.append(f"{status} `{reply['error']['code']}`")
            self.table.check(codes[-1] == "400 `input_too_long`", f"{model}: {status} {reply}")
        usage = self.chancery.usage("overrated")
        self.table.check(usage == (0, 0, 0), f"what was refused is billed: {usage}")
        self.table.row("over-long prompt", 2, f"by our count {codes[0]}; by the engine's own refusal {codes[1]}; not billed")

    def one_of_two_is_killed(self, other):
        """Puts load on both servers, kills `other` midway and starts it again."""
        self.outcomes, end = [], time.monotonic() + LOAD_S
        callers = [threading.Thread(target=self.call_until, args=(end, number)) for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        time.sleep(KILL_AFTER_S)
        other.process.kill()
        killed = time.monotonic()
        with ThreadPoolExecutor(CALLERS) as more:  # before the failure is noticed, so that half of them try the dead one first
            list(more.map(lambda number: self.call("pool", f"You are number {number}.", "Say hello.", 2), range(2 * CALLERS)))
        for caller in callers:
            caller.join()
        good = [outcome for outcome in self.outcomes if outcome[2]]
        failed = [outcome for outcome in self.outcomes if not outcome[2]]
        late = [what for began, what, is_good in self.outcomes if not is_good and began > killed]
        self.table.check(not late, f"requests that began after the kill failed: {late[:3]}")
        self.table.check(len(failed) <= CALLERS, f"{len(failed)} requests failed; {CALLERS} ran at the most")
        self.table.check(all(what == "engine_failed" for _, what, _ in failed), f"failures: {failed}")
        state = self.chancery.states("pool")[f"{other.url}/v1"]
        self.table.check(state in ("down", "open"), f"the killed server is {state}")
        other.start()
        eventually("it is up again", 90, lambda: self.is_up_after_a_request(other))
        retries = self.chancery.metric("chancery_upstream_retries_total", "pool")
        outcome = f"{len(good)} answered, {len(failed)} `engine_failed` (text had begun there), none that began after the kill"
        again = f"{retries:.0f} tried again at the other; then `{state}`, and `up` after it was started anew"
        self.table.row("one of two servers killed under load", len(self.outcomes), f"{outcome}; {again}")

    def is_up_after_a_request(self, other):
        """Only a successful request to a server closes its circuit breaker."""
        self.good("pool", f"You are caller {time.monotonic()}.", "Say hello.", 4)
        return self.chancery.states("pool")[f"{other.url}/v1"] == "up"

    def call_until(self, end, number):
        turn = 0
        while time.monotonic() < end:
            turn += 1
            asked = ("pool", f"You are caller {number}. Answer briefly.", f"What is a ledger? ({turn})", 24)
            self.call(*asked, streams=turn % 2 == 0)

    def call(self, *asked, streams=False):
        began = time.monotonic()
        if streams:
            _, name, reply = self.chancery.stream(*asked).whole()
            is_good = name in ("response.completed", "response.incomplete")
        else:
            status, reply = self.chancery.generate(*asked)
            is_good = status == 200
        self.outcomes.append((began, None if is_good else reply and reply["error"]["code"], is_good))
        if is_good:
            self.note(reply)

    def ledger(self):
        for model, billed in self.billed.items():
            usage = self.chancery.usage(model)
            self.table.check(usage == billed, f"{model}: the ledger has {usage}, the replies came to {billed}")
        verified = self.chancery.run("verify").splitlines()[0]
        total = self.chancery.usage()
        self.table.check("all agree" in verified, verified)
        self.table.row("ledger", total[0], f"{total[1]:,} tokens in, {total[2]:,} out: the sum of the replies; `chancery verify`: all agree")


def models(engine, pool, tokenizer):
    base = {
        "engine": "upstream",
        "endpoints": [f"{engine.url}/v1"],
        "upstream_model": engine.model,
        "input_per_million": "0.10",
        "output_per_million": "0.40",
    }
    yield base | {"name": "counted", "tokenizer": str(tokenizer)}
    yield base | {"name": "believed"}
    yield base | {"name": "overrated", "context_tokens": 1_000_000}
    if len(pool) > 1:
        yield base | {"name": "pool", "tokenizer": str(tokenizer), "endpoints": [f"{one.url}/v1" for one in pool]}


def hold(binary, folder, engines, model_file):
    table, engine = Table(), engines[0]
    tokenizer = folder / "tokenizer.json"
    gguf_tokenizer.write(model_file, tokenizer)
    running = []
    try:
        for one in engines:
            running.append(one.start().process)
        chancery = Chancery(binary, folder / "chancery", models(engine, engines, tokenizer)).start()
        running.append(chancery.process)
        held = Held(chancery, engine, table)
        held.plain()
        held.streamed()
        held.hang_up()
        held.hang_up_before_a_whole_reply()
        held.many_at_once()
        held.stop_strings()
        held.penalties()
        held.logprobs()
        held.loop()
        held.too_long()
        if len(engines) > 1:
            held.one_of_two_is_killed(engines[1])
        held.ledger()
        table.check(chancery.process.stop() == 0, "Chancery did not end well on SIGTERM")
        table.print(f"{engine.version()}, behind {chancery.run('--version')}")
    finally:
        for one in engines:
            if hasattr(one, "process"):
                one.process.stop()
        for process in running:
            process.stop()
    return not table.differences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chancery", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--vllm-python", type=Path)
    parser.add_argument("--vllm-model", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chancery-engines-"))
    if options.llama_server:
        names = ("llama-server-a", "llama-server-b")
        engines = [LlamaServer(folder, name, options.llama_server, options.model) for name in names]
    else:
        engines = [Vllm(folder, "vllm", options.vllm_python, options.vllm_model)]
    agrees = False
    try:
        agrees = hold(options.chancery.resolve(), folder, engines, options.model)
    finally:
        if agrees:
            shutil.rmtree(folder)
        else:
            print(f"logs are in {folder}", file=sys.stderr)
    sys.exit(0 if agrees else 1)


main()
