//! Compares the tokenizer with llama.cpp's, and runs it on texts designed to be slow.

use crate::{engine, references, rows};
use chancery_engine::{Engine, EngineError, Turn};
use serde::Deserialize;

#[derive(Deserialize)]
struct Row {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn token_ids_equal_llama_cpp_over_a_varied_corpus() {
    let rows: Vec<Row> = rows(include_str!("../fixtures/tokens.jsonl"));
    assert_eq!(rows.len(), 201);
    for Row { text, ids } in rows {
        assert_eq!(engine().tokenizer().encode_text(&text), ids, "{text:?}");
    }
}

#[test]
fn tokens_decode_to_their_text() {
    let tokenizer = engine().tokenizer();
    for Row { text, .. } in rows::<Row>(include_str!("../fixtures/tokens.jsonl")) {
        let bytes: Vec<u8> =
            tokenizer.encode_text(&text).iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}

#[test]
fn prompts_equal_the_chat_template_and_count_only_caller_text() {
    for reference in references() {
        let turns = Turn::from_instructions_and_input(&reference.instructions, &reference.input);
        let prompt = engine().prepare(&turns).unwrap();
        assert_eq!(*prompt.token_ids(), *reference.prompt_ids, "{:?}", reference.input);
        assert_eq!(prompt.input_tokens, reference.input_tokens, "{:?}", reference.input);
    }
}

#[test]
fn text_never_becomes_a_control_token() {
    let tokenizer = engine().tokenizer();
    let markers = "<|endoftext|><|im_start|><|im_end|><repo_name><file_sep><jupyter_code>";
    assert!(tokenizer.encode_text(markers).iter().all(|id| *id > 16));
}

#[test]
fn byte_bound_of_a_prompt_is_the_context_of_the_longest_tokens() {
    let tokenizer = engine().tokenizer();
    let longest = tokenizer.max_bytes_per_token();
    assert_eq!(engine().max_prompt_bytes(), 8_192 * longest);
    let max_token = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).len()).max();
    assert_eq!(max_token, Some(longest));
    for Row { text, ids } in rows::<Row>(include_str!("../fixtures/tokens.jsonl")) {
        assert!(text.len() <= ids.len() * longest, "{text:?}");
    }
}

#[test]
fn adversarial_megabyte_is_tokenized_in_time_and_rejected_by_length() {
    let patterns = ["a", " ", "\n", "7", "🙂", "ab", "'", " \n", "the ", "\u{301}", "漢", "aA1 "];
    for pattern in patterns {
        let text = pattern.repeat((1 << 20) / pattern.len());
        let tokens = engine().tokenizer().encode_text(&text).len();
        let scaffolding =
            engine().prepare(&Turn::from_instructions_and_input("", "")).unwrap().prompt_tokens();
        match engine().prepare(&Turn::from_instructions_and_input("", &text)) {
            Err(EngineError::InputTooLong { prompt_tokens: Some(prompt_tokens), context_tokens: 8_192 }) => {
                assert_eq!(prompt_tokens as usize, tokens + scaffolding as usize, "{pattern:?}");
            }
            other => panic!("{pattern:?}: {other:?}"),
        }
    }
}
