"""What schemathesis cannot know from the document: this server's model and a request that it billed, how long a reply may take
in a test, and rules between two values that a schema cannot express. Nothing here turns an invalid request into a valid one."""

import itertools
import os

import schemathesis

MODEL = os.environ["CHANCERY_TEST_MODEL_NAME"]
# A request that has a receipt.
REQUEST_ID = os.environ["CHANCERY_TEST_REQUEST_ID"]
# A test has seconds, not minutes, so replies are cut short.
MAX_OUTPUT_TOKENS = 1
CAPS = {
    "/v1/generate": "max_output_tokens",
    "/v1/tokens": "max_output_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/chat/completions": "max_completion_tokens",
}

numbers = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL
    if case.meta is not None and not case.meta.generation.mode.is_positive:
        return
    if "model" in (case.path_parameters or {}):
        case.path_parameters["model"] = MODEL
    if "request_id" in (case.path_parameters or {}):
        case.path_parameters["request_id"] = REQUEST_ID
    # A key belongs to one request; reusing it for another is rejected with 422.
    if "Idempotency-Key" in (case.headers or {}):
        number = f"-{next(numbers)}"
        case.headers["Idempotency-Key"] = case.headers["Idempotency-Key"][: 255 - len(number)] + number
    days = case.query or {}
    if {"from", "to"} <= days.keys() and days["from"] > days["to"]:
        days["from"], days["to"] = days["to"], days["from"]
    if isinstance(case.body, dict):
        keep_rules_between_fields(case.operation.path, case.body)


def keep_rules_between_fields(path, body):
    if path in CAPS and body.get(CAPS[path]) is not None:
        body[CAPS[path]] = min(body[CAPS[path]], MAX_OUTPUT_TOKENS)
    elif path in CAPS:
        body[CAPS[path]] = MAX_OUTPUT_TOKENS
    if body.get("max_tokens") is not None:
        body["max_tokens"] = body["max_completion_tokens"]
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("top_logprobs"):
        if path == "/v1/responses":
            body["include"] = ["message.output_text.logprobs"]
        else:
            body["logprobs"] = True
    # There must be text to answer.
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, list):
        messages.append({"role": "user", "content": "Say hello."})
    elif messages == "" and not body.get("instructions"):
        body["input"] = "Say hello."
