"""OpenAI's own Python client on Chancery. Only the base URL and the key are ours.

    CHANCERY_URL=http://localhost:8080 CHANCERY_API_KEY=ck_… LIMITED_API_KEY=ck_… python openai_python.py

LIMITED_API_KEY is a key of an account that is limited to one request per minute.
"""

import asyncio
import os
import time
import unittest.mock

import openai
from openai import AsyncOpenAI, OpenAI

BASE_URL = os.environ["CHANCERY_URL"] + "/v1"
MODEL = "smollm2-135m"
QUESTION = "What is a ledger?"
INSTRUCTIONS = "Answer in one short sentence."

client = OpenAI(base_url=BASE_URL, api_key=os.environ["CHANCERY_API_KEY"])


def responses():
    response = client.responses.create(
        model=MODEL, instructions=INSTRUCTIONS, input=QUESTION, max_output_tokens=16, temperature=0,
        metadata={"case": "1042"},
    )
    assert response.output_text.startswith("A ledger is a record"), response
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.object == "response" and response.id.startswith("resp_") and response.model == MODEL
    # The id in the log and the ledger.
    assert response._request_id == "req_" + response.id.removeprefix("resp_")
    assert abs(response.created_at - time.time()) < 120
    assert response.metadata == {"case": "1042"}
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 16, 27), usage
    assert usage.input_tokens_details.cached_tokens == 0 and usage.output_tokens_details.reasoning_tokens == 0
    [message] = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")

    counted = client.responses.input_tokens.count(model=MODEL, instructions=INSTRUCTIONS, input=QUESTION)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 11)


def a_conversation():
    """The reply is sent back unchanged, together with the next question."""
    turns = [{"role": "developer", "content": "Answer in one word."}, {"role": "user", "content": "Say hello."}]
    first = client.responses.create(model=MODEL, input=turns, temperature=0)
    assert first.status == "completed" and first.output_text, first
    turns += first.output
    turns.append({"role": "user", "content": [{"type": "input_text", "text": "Say it again."}]})
    second = client.responses.create(model=MODEL, input=turns, temperature=0, max_output_tokens=8)
    again = client.responses.input_tokens.count(model=MODEL, input="Say it again.").input_tokens
    # Every message is tokenized separately.
    assert second.usage.input_tokens == first.usage.input_tokens + first.usage.output_tokens + again, second.usage


def responses_as_a_stream():
    asked = dict(model=MODEL, instructions=INSTRUCTIONS, input=QUESTION, max_output_tokens=16, temperature=0)
    whole = client.responses.create(**asked)
    text, names = "", []
    with client.responses.create(**asked, stream=True) as events:
        for number, event in enumerate(events):
            assert event.sequence_number == number
            names.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == whole.output_text == event.response.output_text
    assert event.response.usage.output_tokens == whole.usage.output_tokens
    assert names[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ], names
    assert names[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ], names

    # The client's own aggregation of the events.
    with client.responses.stream(model=MODEL, input="Say hello.", temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text and final.usage.total_tokens > 0, final


def chat():
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}],
        max_tokens=16, temperature=0, seed=-7,
    )
    [choice] = completion.choices
    assert choice.message.role == "assistant" and choice.message.content.startswith("A ledger is a record"), completion
    assert choice.finish_reason == "length" and choice.index == 0 and choice.logprobs is None
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 16, 27), usage
    assert completion.object == "chat.completion" and completion.id.startswith("chatcmpl-")

    messages = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
    completion = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert completion.choices[0].finish_reason == "stop"
    messages += [completion.choices[0].message, {"role": "user", "content": "Say it again."}]
    again = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_completion_tokens=8, stop=["never said"],
    )
    assert again.usage.prompt_tokens > completion.usage.total_tokens

    stopped = client.chat.completions.create(
        model=MODEL, temperature=0, stop="record",
        messages=[{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}],
    )
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("A ledger is a ", "stop"), stopped


def chat_as_a_stream():
    asked = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=12, temperature=0)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1
    without_usage = list(client.chat.completions.create(**asked, stream=True))
    assert all(chunk.usage is None for chunk in without_usage)


def penalties():
    """OpenAI's own two, and ours in `extra_body`, as for other servers that have them."""
    asked = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=64, temperature=0)

    def text(**fields):
        return client.chat.completions.create(**asked, **fields).choices[0].message.content

    plain = text()
    assert text(frequency_penalty=0, presence_penalty=0) == plain
    assert text(frequency_penalty=2, presence_penalty=2) != plain
    assert text(extra_body={"repetition_penalty": 1.5}) != plain
    off = {"repetition_penalty": 1, "dry_multiplier": 0, "dry_base": 2, "dry_allowed_length": 4, "stop_on_repetition": False}
    assert text(extra_body=off) == plain

    response = dict(model=MODEL, input=QUESTION, max_output_tokens=64, temperature=0)
    assert client.responses.create(**response).output_text == plain
    ours = {"frequency_penalty": 2, "presence_penalty": 2, "stop_on_repetition": True}
    penalised = client.responses.create(**response, extra_body=ours)
    assert penalised.output_text == text(frequency_penalty=2, presence_penalty=2, extra_body={"stop_on_repetition": True})
    assert penalised.to_dict()["frequency_penalty"] == 2 and penalised.to_dict()["presence_penalty"] == 2


def check_logprobs(logprobs, text, top):
    assert "".join(position.token for position in logprobs) == text, (logprobs, text)
    for position in logprobs:
        assert position.logprob <= 0 and len(position.top_logprobs) == top, position
        # At temperature 0, the most likely token is chosen.
        assert top == 0 or position.top_logprobs[0].token == position.token, position
        assert [likely.logprob for likely in position.top_logprobs] == sorted(
            (likely.logprob for likely in position.top_logprobs), reverse=True), position


def logprobs_of_responses():
    included = ["message.output_text.logprobs"]
    asked = dict(model=MODEL, input=QUESTION, max_output_tokens=12, temperature=0, include=included, top_logprobs=3)
    whole = client.responses.create(**asked)
    [part] = whole.output[0].content
    check_logprobs(part.logprobs, whole.output_text, 3)
    assert bytes(part.logprobs[0].bytes).decode() == part.logprobs[0].token and whole.top_logprobs == 3
    streamed = []
    with client.responses.create(**asked, stream=True) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                streamed += event.logprobs
            elif event.type == "response.output_text.done":
                check_logprobs(event.logprobs, whole.output_text, 3)
    check_logprobs(streamed, whole.output_text, 3)
    check_logprobs(event.response.output[0].content[0].logprobs, whole.output_text, 3)

    # The reply can be sent back with them.
    turns = [*whole.output, {"role": "user", "content": "Go on."}]
    assert client.responses.create(model=MODEL, input=turns, max_output_tokens=1).usage.output_tokens == 1
    plain = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=1)
    assert plain.output[0].content[0].logprobs == []


def logprobs_of_chat():
    asked = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=12, temperature=0, logprobs=True)
    whole = client.chat.completions.create(**asked, top_logprobs=2)
    [choice] = whole.choices
    check_logprobs(choice.logprobs.content, choice.message.content, 2)
    assert bytes(choice.logprobs.content[0].bytes).decode() == choice.logprobs.content[0].token
    without_top = client.chat.completions.create(**asked)
    check_logprobs(without_top.choices[0].logprobs.content, choice.message.content, 0)
    streamed = []
    for chunk in client.chat.completions.create(**asked, top_logprobs=2, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    check_logprobs(streamed, choice.message.content, 2)
    # The client's own aggregation of the chunks, which takes a reply that ends by itself.
    ended = {**asked, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 400}
    with client.chat.completions.stream(**ended, top_logprobs=2) as stream:
        for _ in stream:
            pass
        [final] = stream.get_final_completion().choices
    check_logprobs(final.logprobs.content, final.message.content, 2)


async def asynchronously():
    async with AsyncOpenAI(base_url=BASE_URL, api_key=client.api_key) as asynchronous:
        stream = await asynchronous.responses.create(model=MODEL, input="Say hello.", temperature=0, stream=True)
        names = [event.type async for event in stream]
        assert names[-1] == "response.completed", names


def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "chancery")
    assert abs(model.created - time.time()) < 3600


def refused(error_class, code, param, call):
    try:
        call()
    except error_class as error:
        assert (error.code, error.param) == (code, param), (error.code, error.param, error)
        assert error.request_id.startswith("req_")
        return error
    raise AssertionError(f"{code} was not raised")


def errors():
    ask = client.responses.create
    chat = client.chat.completions.create
    hello = [{"role": "user", "content": "Say hello."}]
    bad, bad_value = openai.BadRequestError, "invalid_value"
    error = refused(bad, bad_value, "max_output_tokens", lambda: ask(model=MODEL, input="x", max_output_tokens=10**9))
    assert error.type == "invalid_request_error" and "1 to 8192" in error.body["message"], error.body
    refused(bad, bad_value, "max_tokens", lambda: chat(model=MODEL, messages=hello, max_tokens=10**9))
    refused(bad, bad_value, "tools", lambda: ask(model=MODEL, input="x", tools=[{"type": "web_search"}]))
    refused(bad, bad_value, "n", lambda: chat(model=MODEL, messages=hello, n=2))
    refused(bad, bad_value, "store", lambda: ask(model=MODEL, input="x", store=True))
    refused(bad, bad_value, "frequency_penalty", lambda: chat(model=MODEL, messages=hello, frequency_penalty=3))
    error = refused(bad, bad_value, "top_logprobs", lambda: chat(model=MODEL, messages=hello, top_logprobs=2))
    assert "`logprobs: true`" in error.body["message"], error.body
    error = refused(bad, bad_value, "top_logprobs", lambda: ask(model=MODEL, input="x", top_logprobs=2))
    assert "message.output_text.logprobs" in error.body["message"], error.body
    refused(bad, bad_value, "dry_base", lambda: chat(model=MODEL, messages=hello, extra_body={"dry_base": 9}))
    refused(bad, bad_value, "stream_options", lambda: chat(
        model=MODEL, messages=hello, stream_options={"include_usage": True}))
    refused(bad, bad_value, "response_format.type", lambda: chat(
        model=MODEL, messages=hello, response_format={"type": "json_object"}))
    refused(bad, "malformed_request", "temprature", lambda: ask(model=MODEL, input="x", extra_body={"temprature": 1}))
    refused(bad, "context_length_exceeded", "messages", lambda: chat(
        model=MODEL, messages=[{"role": "user", "content": "word " * 9000}]))
    refused(bad, "context_length_exceeded", "input", lambda: ask(model=MODEL, input="word " * 9000, stream=True))
    refused(openai.NotFoundError, "model_not_found", "model", lambda: ask(model="gpt", input="x"))
    refused(openai.NotFoundError, "not_found", None, lambda: client.responses.retrieve("resp_1"))
    try:
        client.models.retrieve("gpt")
    except openai.NotFoundError as error:
        assert error.code == "unknown_model", error
    stranger = client.with_options(api_key="ck_nobody")
    error = refused(openai.AuthenticationError, "invalid_api_key", None, lambda: stranger.responses.create(model=MODEL, input="x"))
    assert error.type == "authentication_error"
    refused(openai.AuthenticationError, "invalid_api_key", None, lambda: stranger.chat.completions.create(model=MODEL, messages=hello))


def past_the_limit():
    """The second request within a minute is rejected; a client with retries waits as told, which is not awaited here."""
    limited = client.with_options(api_key=os.environ["LIMITED_API_KEY"])
    asked = dict(model=MODEL, input="Say hello.", max_output_tokens=1)
    first = limited.responses.with_raw_response.create(**asked)
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    impatient = limited.with_options(max_retries=0)
    error = refused(openai.RateLimitError, "rate_limit_exceeded", None, lambda: impatient.responses.create(**asked))
    seconds = int(error.response.headers["retry-after"])
    assert error.type == "rate_limit_error" and 0 < seconds <= 60
    patient = limited.with_options(max_retries=1)
    with unittest.mock.patch("time.sleep") as sleep:
        refused(openai.RateLimitError, "rate_limit_exceeded", None, lambda: patient.responses.create(**asked))
    [[waited], _] = sleep.call_args
    assert 0 <= seconds - waited <= 5, (seconds, waited)


def main():
    for part in [
        responses, a_conversation, responses_as_a_stream, chat, chat_as_a_stream, penalties, logprobs_of_responses,
        logprobs_of_chat, models, errors, past_the_limit,
    ]:
        part()
    asyncio.run(asynchronously())
    print("every call did what it should")


main()
