//! The test model's `tokenizer.json`, built from its weights file: the same vocabulary, merges and pre-tokenizer as the
//! published one, for a third-party tokenizer.

use chancery_engine_cpu::Gguf;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CONTROL: i64 = 3;

pub fn write(model_file: &Path, folder: &Path) -> PathBuf {
    let file = Gguf::open(model_file).unwrap();
    let metadata = file.metadata();
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    let types = metadata.integers("tokenizer.ggml.token_type").unwrap();
    let merges = metadata.strings("tokenizer.ggml.merges").unwrap();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let special = |(id, token): (usize, &String)| {
        (types[id] == CONTROL).then(|| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
    };
    let added: Vec<Value> = tokens.iter().enumerate().filter_map(special).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges},
    });
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    path
}
