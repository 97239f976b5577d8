"""Serves OpenVINO GenAI over HTTP, for the benchmarks: continuous batching, prefix cache, greedy.

It implements the part of the chat-completions API that the load generator uses, streaming only. Everything around the engine is as
cheap as possible, in the engine's favour: one thread steps it, tokens are sent as bare events, and the text is decoded once, at the
end of the reply.
"""

import argparse
import asyncio
import json
import threading

import openvino_genai as genai

KV_BLOCK_TOKENS = 32  # the CPU device's block size
EVENT = b'data: {"choices":[{"delta":{"content":""}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Engine:
    """Owns the pipeline. One thread steps it while there is work and passes new tokens to each request."""

    def __init__(self, options, loop):
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = options.kv_tokens // KV_BLOCK_TOKENS
        scheduler.max_num_seqs = options.slots
        scheduler.max_num_batched_tokens = options.batch_tokens
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
        self.tokenizer = self.pipeline.get_tokenizer()
        self.loop = loop
        self.running = []
        self.work = threading.Condition()
        self.last_id = 0
        threading.Thread(target=self.step_for_ever, daemon=True).start()

    def start(self, messages, max_tokens, arrivals):
        """Starts a request. Its tokens arrive in the queue as lists, followed by None."""
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        tokens = self.tokenizer.encode(prompt).input_ids
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        with self.work:
            self.last_id += 1
            handle = self.pipeline.add_request(self.last_id, tokens, config)
            self.running.append((handle, arrivals))
            self.work.notify()
        return tokens.shape[1]

    def step_for_ever(self):
        while True:
            with self.work:
                self.work.wait_for(lambda: self.running)
                running = list(self.running)
            self.pipeline.step()
            news, ended = [], set()
            for handle, arrivals in running:
                while handle.can_read():
                    news.append((arrivals, next(iter(handle.read().values())).generated_ids))
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    news.append((arrivals, None))
                    ended.add(handle)
            if ended:
                with self.work:
                    self.running = [entry for entry in self.running if entry[0] not in ended]
            self.loop.call_soon_threadsafe(deliver, news)


def deliver(news):
    for arrivals, tokens in news:
        arrivals.put_nowait(tokens)


async def answer(engine, reader, writer):
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if head.startswith("GET"):
            writer.write(HEAD + b"ready\n")
            return
        length = next(int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:"))
        body = json.loads(await reader.readexactly(length))
        await stream_reply(engine, body, writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the caller has disconnected
    finally:
        writer.close()


async def stream_reply(engine, body, writer):
    arrivals = asyncio.Queue()
    prompt_tokens = engine.start(body["messages"], body["max_tokens"], arrivals)
    writer.write(HEAD)
    reply = []
    while (tokens := await arrivals.get()) is not None:
        reply += tokens
        if len(reply) < body["max_tokens"]:
            writer.write(EVENT)
    text = engine.tokenizer.decode(reply)
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(reply)}
    last = {"choices": [{"delta": {"content": text}}], "usage": usage}
    writer.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--kv-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-tokens", type=int, default=256)
    options = parser.parse_args()
    engine = Engine(options, asyncio.get_running_loop())
    server = await asyncio.start_server(lambda r, w: answer(engine, r, w), "127.0.0.1", options.port)
    await server.serve_forever()


asyncio.run(main())
