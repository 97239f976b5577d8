//! Fuzz target of an upstream server's stream: what it may send is bounded, is passed on whole, and is never quoted in an error.

use super::{Piece, Received, ReplyLimits};
use crate::limits::{CAP_CHECK_FRACTION, MAX_BYTES_PER_TOKEN, MAX_EVENT_BYTES, MAX_EXTRA_LOGPROBS};
use chancery_engine::TokenLogprobs;
use chancery_http_client::EventReader;
use chancery_test_support::Fuzz;
use std::time::Duration;

const MAX_TOKENS: u32 = 4;
/// Has a space, because errors may quote an identifier such as an error code.
const PRIVATE_TEXT: &str = "PRIVATE TEXT";

#[test]
fn upstream_streams() {
    let seeds = [
        r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}

data: {"choices":[{"delta":{"content":"PRIVATE TEXT"}}]}

data: {"choices":[{"delta":{},"finish_reason":"stop","stop_reason":"x"}]}

data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}

data: [DONE]

"#,
        r#"data: {"choices":[{"delta":{"reasoning_content":"PRIVATE TEXT","reasoning":"PRIVATE TEXT"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}

data: {"choices":[{"delta":{"content":"b"},"finish_reason":"length"}]}

data: {"error":{"message":"PRIVATE TEXT","code":"overloaded"}}

"#,
        r#"data: {"choices":[{"delta":{"content":"a "},"logprobs":{"content":[{"token":"a ","logprob":-0.1,"bytes":[97,32],"top_logprobs":[{"token":"b","logprob":-2.5,"bytes":null}]}]}}]}

data: {"choices":[{"delta":{"content":""},"logprobs":{"content":[{"token":"\\xe2","logprob":-1e300,"bytes":[226],"top_logprobs":[]}]}}]}

data: {"choices":[{"delta":{"content":"a a a a a a "},"logprobs":null}]}

data: {"choices":[{"delta":{},"logprobs":{"content":[{"token":"<end>","logprob":0}]},"finish_reason":"length"}]}

"#,
    ];
    let fuzz = Fuzz {
        name: "upstream_streams",
        crate_folder: env!("CARGO_MANIFEST_DIR"),
        seeds: seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect(),
        tokens: &[
            "data: ",
            "\n\n",
            "[DONE]",
            "{\"choices\":[{\"delta\":{\"content\":\"PRIVATE TEXT\"}}]}",
            "\"finish_reason\":",
            "\"stop\"",
            "\"length\"",
            "\"content_filter\"",
            "\"abort\"",
            "\"usage\":",
            "\"completion_tokens\":",
            "\"error\":",
            "\"reasoning\":",
            "\"logprobs\":",
            "\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1}]}",
            "\"bytes\":",
            "\"top_logprobs\":",
            "PRIVATE TEXT",
        ],
        iterations: 1_000,
    };
    fuzz.run(|bytes| {
        for (retains_text, isolates_cache) in [(true, false), (false, true)] {
            for (stops_on_repetition, top_logprobs) in [(false, None), (true, Some(0)), (true, Some(1))] {
                check(
                    bytes,
                    ReplyLimits {
                        max_tokens: MAX_TOKENS,
                        idle: Duration::MAX,
                        retains_text,
                        isolates_cache,
                        stops_on_repetition,
                        top_logprobs,
                    },
                );
            }
        }
    });
}

fn check(bytes: &[u8], reply_limits: ReplyLimits) {
    let mut received = Received::new(reply_limits);
    let mut pending = Vec::new();
    let outcome = EventReader::new(MAX_EVENT_BYTES)
        .read(bytes, |_, data| received.handle_event(data, reply_limits, &mut pending));
    if let Err(error) = outcome {
        let shown = format!("{error:?}");
        assert!(!shown.contains(PRIVATE_TEXT), "{shown}");
    }
    let (mut reasoning, mut text) = (String::new(), String::new());
    let mut logprobs: Vec<&TokenLogprobs> = Vec::new();
    for piece in &pending {
        match piece {
            Piece::Reasoning(part) => reasoning.push_str(part),
            Piece::Text(part) => text.push_str(part),
            Piece::Logprobs(more) => logprobs.extend(more),
        }
    }
    assert_eq!(received.text_bytes, reasoning.len() + text.len());
    assert!(received.text_bytes <= (MAX_TOKENS as usize + 1) * MAX_BYTES_PER_TOKEN);
    assert!(received.reasoning_chunks <= received.text_chunks);
    let max_logprobs = (MAX_TOKENS + MAX_TOKENS / CAP_CHECK_FRACTION) as usize + MAX_EXTRA_LOGPROBS;
    assert!(logprobs.len() <= max_logprobs);
    match reply_limits.top_logprobs {
        Some(max_top) => assert!(logprobs.iter().all(|entry| entry.top.len() <= usize::from(max_top))),
        None => assert!(logprobs.is_empty(), "not requested"),
    }
    if reply_limits.retains_text {
        assert_eq!((&received.reasoning, &received.text), (&reasoning, &text));
    } else {
        assert!(received.reasoning.is_empty() && received.text.is_empty());
    }
    if !reply_limits.isolates_cache {
        assert_eq!(
            received.usage.map_or(0, |usage| usage.cached_tokens),
            0,
            "a shared cache is not reported"
        );
    }
}
