"""Writes the tokenizer.json of a model whose GGUF file has a byte-level BPE that splits digits, as SmolLM2's does: the same
vocabulary, merges and pre-tokenizer as the published file. crates/chancery/tests/it/upstream/tokenizer_file.rs does it for the tests.
"""

import json
import struct

CONTROL = 3
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def metadata(path):
    """Returns all metadata before the tensors, by name."""
    with open(path, "rb") as file:

        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]

        def text():
            return file.read(number("Q")).decode()

        def value(kind):
            if kind == STRING:
                return text()
            if kind == ARRAY:
                item, count = number("I"), number("Q")
                return [value(item) for _ in range(count)]
            return number(NUMBERS[kind])

        assert file.read(4) == b"GGUF", f"{path} is no GGUF file"
        number("I"), number("Q")
        return {text(): value(number("I")) for _ in range(number("Q"))}


def write(model_file, target):
    found = metadata(model_file)
    assert found["tokenizer.ggml.pre"] == "smollm", "only SmolLM's cuts are known here"
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **flags}
            for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": found["tokenizer.ggml.merges"],
        },
    }
    target.write_text(json.dumps(tokenizer))
