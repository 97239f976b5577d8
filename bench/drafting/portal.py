"""A Chancery server for the evaluation: one model, an empty data folder, a client for each note, and a signed-in consultant.

Letters are requested as the editor's script does: `POST /clients/<id>/letters/draft` with `Accept: text/event-stream`. Everything used
here is the same in older versions, so one program measures them all.
"""

import contextlib
import hashlib
import http.client
import json
import os
import re
import secrets
import socket
import sqlite3
import string
import subprocess
import time
import urllib.parse

from scoring import Draft, Writer

WRITER = Writer("Maya Fletcher", "Marlow & Finch")
EMAIL = "maya@example.com"
# Loading 1.5B weights on a slow disk takes a minute.
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
# Between two reads: the portal sends a comment every 10 seconds.
READ_TIMEOUT_S = 45
# Attempts while the server reports that it is busy.
MAX_ATTEMPTS = 3
# The maximum length in the panel beside the editor.
SUGGESTED_TOKENS = re.compile(r'id="draft-max"[^>]*\bvalue="([\d,]+)"')
# A letter is a few kilobytes; anything beyond is a defect of the server.
MAX_LETTER_CHARS = 100_000


class EvaluationError(Exception):
    """Something is wrong with the set-up, not with a letter."""


def model_file(binary, name, path):
    """Returns the path of the weights: the given one, or what `chancery model pull` prints, or a file that is there already."""
    if path:
        if not os.path.isfile(path):
            raise EvaluationError(f"no model file at {path}; give NAME, PATH or NAME=PATH")
        return os.path.abspath(path)
    pulled = subprocess.run([binary, "model", "pull", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if pulled.returncode == 0 and pulled.stdout.strip():
        return pulled.stdout.strip().splitlines()[-1]
    # An older version does not know the name, but a newer one may have fetched the file.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    present = os.path.join(cache, "chancery", "models", f"{name}.gguf")
    if os.path.isfile(present):
        return present
    raise EvaluationError(f"model {name} cannot be pulled and {present} does not exist: {pulled.stderr.strip()[-500:]}")


def free_ports(count):
    with contextlib.ExitStack() as opened:
        listeners = [opened.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


class Portal:
    """Use as a context manager: the server stops at the end."""

    def __init__(self, binary, folder, name, weights, notes, context_tokens=None):
        self.binary, self.folder, self.name = os.path.abspath(binary), folder, name
        self.api, self.port, auth, self.ops = free_ports(4)
        quoted = json.dumps  # a JSON string is a TOML string
        context = f"context_tokens = {context_tokens}\n" if context_tokens else ""
        self.config = folder / "chancery.toml"
        self.config.write_text(
            f"data = {quoted(str(folder / 'data'))}\n"
            f'[api]\nlisten = "127.0.0.1:{self.api}"\n'
            f'[portal]\nlisten = "127.0.0.1:{self.port}"\ncompany_domain = "example.com"\nfirm_name = {quoted(WRITER.firm)}\n'
            f"[portal.drafting]\nmodel = {quoted(name)}\n"
            f'[auth]\nlisten = "127.0.0.1:{auth}"\n[ops]\nlisten = "127.0.0.1:{self.ops}"\n'
            f"[[models]]\nname = {quoted(name)}\nengine = \"embedded\"\nfile = {quoted(weights)}\n{context}"
            'input_per_million = "0.10"\noutput_per_million = "0.40"\n'
        )
        # Creates the database.
        self.run("account", "create", "Evaluation", "--rpm", "60", "--tpm", "100000")
        self.database = folder / "data" / "chancery.db"
        self.sign_in()
        self.import_clients(notes)

    def environment(self):
        """Settings of the caller must not change what is measured; the kernel may be chosen."""
        is_own = lambda name: name.startswith("CHANCERY_") and name != "CHANCERY_KERNEL"
        return {name: value for name, value in os.environ.items() if not is_own(name)}

    def run(self, *arguments):
        command = [self.binary, "--config", str(self.config), *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, env=self.environment())
        if ended.returncode != 0:
            raise EvaluationError(f"chancery {' '.join(map(str, arguments))}: {(ended.stdout + ended.stderr).strip()[-1000:]}")
        return ended.stdout

    def sign_in(self):
        """Creates the consultant and a session directly in the database: there is no browser to sign in with."""
        now = int(time.time() * 1000)
        person = {"issuer": "http://evaluation", "subject": "maya", "email": EMAIL, "mailbox": EMAIL, "role": "consultant"}
        person_id = insert(self.database, "people", **person, name=WRITER.name, joined_at_ms=now)
        token = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(43))
        times = {"started_at_ms": now, "last_used_at_ms": now}
        insert(self.database, "sessions", token_hash=hashlib.sha256(token.encode()).digest(), person_id=person_id, **times)
        self.cookie = f"session={token}"

    def import_clients(self, notes):
        file = self.folder / "clients.jsonl"
        rows = ({**note["client"], "owner": EMAIL, "entries": [note["entry"]]} for note in notes)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.run("client", "import", file)
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            found = connection.execute("SELECT c.name, c.id, e.id FROM clients c JOIN entries e ON e.client_id = c.id").fetchall()
        self.records = {name: (client, entry) for name, client, entry in found}
        if missing := [note["client"]["name"] for note in notes if note["client"]["name"] not in self.records]:
            raise EvaluationError(f"not imported: {', '.join(missing)}")

    def __enter__(self):
        self.log = self.folder / "server.log"
        command = [self.binary, "--config", str(self.config), "serve"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment())
        try:
            self.wait_until_ready()
            self.suggested_tokens = self.read_suggested_tokens()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_until_ready(self):
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise EvaluationError(f"the server ended while starting:\n{self.end_of_log()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.ops, timeout=5)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.2)
        raise EvaluationError(f"the server was not ready after {START_TIMEOUT_S} s:\n{self.end_of_log()}")

    def read_suggested_tokens(self):
        """Returns the maximum length that the editor sends unless the writer changes it."""
        client, _ = next(iter(self.records.values()))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READ_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", f"/clients/{client}?open=letter", headers={"Accept": "text/html", "Cookie": self.cookie})
            response = connection.getresponse()
            page = response.read().decode("utf-8", errors="replace")
        found = SUGGESTED_TOKENS.search(page)
        if response.status != 200 or not found or "The price is not available" in page:
            raise EvaluationError(f"the editor has no drafting panel, or no model (status {response.status}):\n{self.end_of_log()}")
        return int(found.group(1).replace(",", ""))

    def end_of_log(self):
        return self.log.read_text(errors="replace")[-2000:]

    def draft(self, note, timeout_s, max_output_tokens=None):
        """Requests one letter. A letter that fails is a result too: it comes back with its reason."""
        end = time.monotonic() + timeout_s
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                draft, retry_after_s = self.draft_once(note, end, max_output_tokens)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self.process.poll() is not None:
                    raise EvaluationError(f"the server ended:\n{self.end_of_log()}") from error
                return Draft(error=f"{type(error).__name__}: {error}")
            if retry_after_s is None or attempt == MAX_ATTEMPTS or time.monotonic() + retry_after_s > end:
                return draft
            time.sleep(retry_after_s)

    def draft_once(self, note, end, max_output_tokens):
        """Returns the draft, and after how many seconds to try again if the server is busy."""
        client, entry = self.records[note["client"]["name"]]
        fields = [("purpose", note["purpose"]), ("entries", entry), ("title", ""), ("text", "")]
        fields.append(("max_output_tokens", max_output_tokens or self.suggested_tokens))
        headers = {
            "Accept": "text/event-stream",
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": self.cookie,
            "Origin": f"http://127.0.0.1:{self.port}",
            "Sec-Fetch-Site": "same-origin",
        }
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READ_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", f"/clients/{client}/letters/draft", urllib.parse.urlencode(fields), headers)
            response = connection.getresponse()
            if response.status != 200 or "text/event-stream" not in response.headers.get("Content-Type", ""):
                return Draft(error=f"status {response.status}: {response.read(300).decode(errors='replace')}"), None
            draft, retry_after_s = read_draft(events(response), lambda: time.monotonic() > end)
        draft.seconds = time.monotonic() - began
        return draft, retry_after_s


def events(response):
    """Yields the name and the data of each event, and None for every other line, so that the caller can check the time."""
    name = None
    for line in response:
        line = line.decode("utf-8", errors="replace").rstrip("\r\n")
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            yield name, json.loads(line.removeprefix("data:"))
            continue
        yield None


def read_draft(stream, is_over):
    """Reads `delta` events up to `finished` or `failed`."""
    text = ""
    for event in stream:
        if is_over():
            return Draft(text, error="over the time limit for a letter"), None
        if event is None:
            continue
        name, data = event
        if name == "delta":
            text += data["text"]
            if len(text) > MAX_LETTER_CHARS:
                return Draft(text, error=f"more than {MAX_LETTER_CHARS} characters"), None
        elif name == "finished":
            finished = {"stop_reason": data.get("stop_reason") or "", "is_unfinished": data.get("is_unfinished")}
            # The editor ends up with this text. An older version does not send it again.
            text = data.get("text", text)
            return Draft(text, output_tokens=data.get("output_tokens") or 0, **finished), None
        elif name == "failed":
            return Draft(text, error=data.get("words") or data.get("message") or "failed"), data.get("retry_after_s")
    return Draft(text, error="the stream ended without its last event"), None


def insert(database, table, **values):
    """Inserts a row and returns its id. Required columns that are not named get an empty text, or the time now; columns that this
    version does not have are left out."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        values = {name: value for name, value in values.items() if name in {column[1] for column in columns}}
        for _, name, kind, is_required, default, is_primary in columns:
            if is_required and default is None and not is_primary:
                values.setdefault(name, int(time.time() * 1000) if kind == "INTEGER" else "")
        marks = ", ".join("?" for _ in values)
        cursor = connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))
        connection.commit()
        return cursor.lastrowid
