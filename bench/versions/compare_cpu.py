#!/usr/bin/env python3
"""Compares the CPU time of two chancery binaries per request, in interleaved rounds on this machine.

    bench/versions/compare_cpu.py base=/path/to/old/chancery new=target/release/chancery

Measures POST /v1/generate with an upstream that answers at once, a client's record, and a page of the client list. Each
binary gets its own SQLite file with 2,000 clients of 10 entries. Only the server's own user and system time counts.
"""

import http.client
import http.server
import json
import os
import hashlib
import pathlib
import re
import secrets
import socket
import socketserver
import sqlite3
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time

THREADS = 8
REQUESTS = int(os.environ.get("REQUESTS", "1600"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
CLIENTS = 2_000
CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Yes."}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}},
]
STREAM = b"".join(b"data: " + json.dumps({"id": "x", **chunk}).encode() + b"\n\n" for chunk in CHUNKS) + b"data: [DONE]\n\n"


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def respond(self, content_type, body):
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.respond("application/json", json.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}).encode())

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.respond("text/event-stream", STREAM)


class UpstreamServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, binary, folder, upstream_port):
        self.api, self.portal, auth, self.ops = (free_port() for _ in range(4))
        self.config = folder / "chancery.toml"
        self.config.write_text(
            f'data = "{folder}/data"\n[api]\nlisten = "127.0.0.1:{self.api}"\n'
            f'[portal]\nlisten = "127.0.0.1:{self.portal}"\ncompany_domain = "example.com"\nperson_rpm = 4000000\n'
            f'[auth]\nlisten = "127.0.0.1:{auth}"\n[ops]\nlisten = "127.0.0.1:{self.ops}"\n'
            f'[[models]]\nname = "m"\nengine = "upstream"\nendpoints = ["http://127.0.0.1:{upstream_port}/v1"]\n'
            'context_tokens = 4096\ninput_per_million = "0.10"\noutput_per_million = "0.40"\n'
        )
        run = lambda *args: subprocess.run(
            [binary, "--config", self.config, *args], check=True, capture_output=True, text=True
        ).stdout
        run("account", "create", "A", "--rpm", "4000000", "--tpm", "4000000000")
        self.key = re.search(r"ck_\w+", run("key", "create", "--account", "A")).group()
        database = folder / "data" / "chancery.db"
        now = int(time.time() * 1000)
        insert(database, "people", issuer="http://x", subject="maya", email="maya@example.com", role="consultant", joined_at_ms=now)
        clients = folder / "clients.jsonl"
        clients.write_text("".join(json.dumps(client(number)) + "\n" for number in range(CLIENTS)))
        run("client", "import", clients)
        token = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(43))
        times = {"started_at_ms": now, "last_used_at_ms": now}
        insert(database, "sessions", token_hash=hashlib.sha256(token.encode()).digest(), person_id=1, **times)
        self.cookie = f"session={token}"
        self.process = subprocess.Popen(
            [binary, "--config", self.config, "serve"], stdout=(folder / "out").open("w"), stderr=subprocess.STDOUT
        )
        self.wait_until_ready()

    def wait_until_ready(self):
        for _ in range(300):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.ops)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"the server did not become ready: {self.config.parent / 'out'}")

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def request(self, kind, number):
        if kind == "generate":
            body = {"model": "m", "instructions": "Answer briefly.", "input": "Is it paid?", "max_output_tokens": 4}
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            return self.api, ("POST", "/v1/generate", json.dumps(body), headers)
        path = f"/clients/{1001 + number % CLIENTS}" if kind == "record" else f"/clients?page={1 + number % 40}"
        return self.portal, ("GET", path, None, {"Cookie": self.cookie})

    def cpu_us_per_request(self, kind, requests):
        def work(thread):
            connection = http.client.HTTPConnection("127.0.0.1", self.request(kind, 0)[0])
            for count in range(requests // THREADS):
                connection.request(*self.request(kind, thread * 97 + count * 7)[1])
                response = connection.getresponse()
                if response.status != 200:
                    print(kind, response.status, response.read()[:300], flush=True)
                    os._exit(1)
                response.read()

        before = self.cpu_s()
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (self.cpu_s() - before) / (requests // THREADS * THREADS) * 1e6


def client(number):
    text = "They called about the lease. " * 8
    entry = lambda index: {"kind": "meeting_note", "title": f"Note {index}", "text": text, "at": "2026-11-12T15:30:00Z"}
    return {"name": f"Client {number:04}", "owner": "maya@example.com", "entries": [entry(index) for index in range(10)]}


def insert(database, table, **values):
    """Columns that are not named get an empty text, or the time now, because their names differ between versions."""
    connection = sqlite3.connect(database)
    for _, name, kind, required, default, primary in connection.execute(f"PRAGMA table_info({table})").fetchall():
        if required and default is None and not primary:
            values.setdefault(name, int(time.time() * 1000) if kind == "INTEGER" else "")
    marks = ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))
    connection.commit()
    connection.close()


def main():
    binaries = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if set(binaries) != {"base", "new"}:
        sys.exit(__doc__)
    upstream = UpstreamServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        servers = {}
        for name, binary in binaries.items():
            own = pathlib.Path(folder, name)
            own.mkdir()
            servers[name] = Server(binary, own, upstream.server_port)
        for kind in ("generate", "record", "list"):
            for server in servers.values():
                server.cpu_us_per_request(kind, REQUESTS // 4)
            rounds = {name: [] for name in servers}
            for number in range(ROUNDS):
                for name, server in sorted(servers.items(), reverse=number % 2 == 1):
                    rounds[name].append(server.cpu_us_per_request(kind, REQUESTS))
            base, new = (statistics.median(rounds[name]) for name in ("base", "new"))
            print(f"{kind}: base {base:.0f} µs, new {new:.0f} µs, new/base {new / base:.3f}; rounds", end=" ")
            print({name: [round(value) for value in values] for name, values in rounds.items()}, flush=True)
        for server in servers.values():
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
