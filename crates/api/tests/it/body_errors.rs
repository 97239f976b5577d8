//! The API's responses to bad request bodies. A corpus is sent to every path that takes a body, and status, code, field
//! and reason are compared with `body_errors.txt`. `CHANCERY_RENEW_DOCS=1` rewrites that file.
//!
//! The bodies name a model that does not exist, so an accepted body returns `404 unknown_model` and nothing runs.

use crate::test_server::TestServer;
use chancery_engine::{MAX_TURNS, ScriptedEngine};
use serde_json::Value;
use std::fmt::Write;
use std::sync::Arc;

/// A path, its smallest valid body, and the values to try for each field.
struct Endpoint {
    path: &'static str,
    good: &'static [(&'static str, &'static str)],
    fields: &'static [(&'static str, Values)],
}

/// JSON values separated by spaces.
type Values = &'static str;

/// At least one value of every type, plus numeric edge cases.
const ANY: Values = r#"null true 0 1 -1 0.5 "" "x" [] ["x"] {} {"x":1}"#;
const TEXT: Values = r#"null false 8 0.5 "" [] ["x"] {}"#;
const BOOLEAN: Values = r#"null true false 0 1 "true" [] {}"#;
const INTEGER: Values = r#"
    null true 0 -0 1 -1 2 0.5 64.0 6.4e1 1e300 -1e300 1048576 1048577 4294967296 9007199254740992.0
    9007199254740994.0 9223372036854775807 9223372036854775808 18446744073709551615
    18446744073709551616 -9223372036854775808 -9223372036854775809 "8" [8] {"value":8}
"#;
const NUMBER: Values = r#"
    null false 0 -0.0 1 2 3 -1 -0.0001 0.5 1.0000001 2.0000001 1e-320 1e300 -1e300
    18446744073709551616 "0.5" [] {}
"#;
const PENALTY: Values = r#"
    null true 0 -0.0 1 -1 2 -2 2.0001 -2.0001 4 4.5 5 5.5 0.5 1e-320 1e300 "0.5" [] {}
"#;
const LENGTH: Values = r#"null true 0 1 -1 2 64 65 1.5 2.0 1e300 "2" [2] {}"#;
const TOP_LOGPROBS: Values = r#"null true 0 0.0 1 20 21 -1 0.5 1e300 "1" [1] {}"#;
const STOP: Values = r#"
    null true 5 "" "x" [] [""] ["x",""] ["x",5] [null] [[]] ["a","b","c","d"] ["a","b","c","d","e"]
    {}
"#;
const WORD: Values = r#"
    null true 5 "auto" "none" "default" "medium" "disabled" "in_memory" "required" "Auto" "" []
    {"type":"function"}
"#;
const COUNT: Values = r#"null false 0 0.0 1 1.0 2 -1 0.5 1e300 "0" []"#;
const EMPTY: Values = r#"null false 0 "" [] {} [1] [[]] {"50256":-100}"#;
const INCLUDE: Values = r#"
    null 5 {} [] [5] ["reasoning.encrypted_content"] ["message.output_text.logprobs"] ["x"]
    ["reasoning.encrypted_content","message.output_text.logprobs"] "reasoning.encrypted_content"
"#;
const METADATA: Values =
    r#"null true 5 "x" [] {} {"a":"b"} {"a":1} {"a":null} {"a":{}} {"":""} {"a":"b","c":["d"]}"#;
const MESSAGE_LISTS: Values =
    r#"null true 5 "" "x" {} {"role":"user","content":"x"} [] [null] ["x"] [[]] [5] [{}]"#;

const GENERATION: &[(&str, Values)] = &[
    ("model", TEXT),
    ("instructions", TEXT),
    ("input", TEXT),
    ("max_output_tokens", INTEGER),
    ("stream", BOOLEAN),
    ("receipt", BOOLEAN),
    ("temperature", NUMBER),
    ("top_k", INTEGER),
    ("top_p", NUMBER),
    ("min_p", NUMBER),
    ("seed", INTEGER),
    ("stop", STOP),
    ("frequency_penalty", PENALTY),
    ("presence_penalty", PENALTY),
    ("repetition_penalty", PENALTY),
    ("dry_multiplier", PENALTY),
    ("dry_base", PENALTY),
    ("dry_allowed_length", LENGTH),
    ("stop_on_repetition", BOOLEAN),
    ("logprobs", BOOLEAN),
    ("top_logprobs", TOP_LOGPROBS),
    // Valid on other paths only.
    ("messages", ANY),
    ("include", INCLUDE),
    ("n", COUNT),
    ("user", TEXT),
    ("tools", EMPTY),
    ("metadata", METADATA),
];

const CONVERSATION: &[(&str, Values)] = &[
    ("model", TEXT),
    ("instructions", TEXT),
    ("input", MESSAGE_LISTS),
    ("parallel_tool_calls", BOOLEAN),
    ("tool_choice", WORD),
    ("conversation", ANY),
    ("previous_response_id", TEXT),
    ("tools", EMPTY),
    ("truncation", WORD),
    (
        "reasoning",
        r#"
    null 5 [] {} {"effort":"none"} {"effort":"high"} {"efort":"none"} {"effort":null,"summary":null}
    {"summary":"auto"} {"context":"auto","mode":"fast"} {"effort":"high","effort":"none"} {"":1}
"#,
    ),
    (
        "text",
        r#"
    null 5 "text" {} {"format":{"type":"text"}} {"format":{"type":"json_schema"}}
    {"format":{"typ":"text"}} {"format":"text"} {"format":{"type":null}} {"verbosity":"low"}
    {"formats":{}} {"format":{"type":"text","schema":{}}}
"#,
    ),
    ("personality", ANY),
    ("max_output_tokens", INTEGER),
    ("stream", BOOLEAN),
    ("temperature", NUMBER),
    ("top_p", NUMBER),
    ("metadata", METADATA),
    ("user", TEXT),
    ("safety_identifier", TEXT),
    ("prompt_cache_key", TEXT),
    ("access_programs", ANY),
    ("background", BOOLEAN),
    ("context_management", EMPTY),
    ("image", ANY),
    ("include", INCLUDE),
    ("max_tool_calls", INTEGER),
    ("moderation", ANY),
    ("prompt", ANY),
    ("prompt_cache_options", ANY),
    ("prompt_cache_retention", WORD),
    ("service_tier", WORD),
    ("store", BOOLEAN),
    ("stream_options", r#"null 5 [] {} {"include_obfuscation":false} {"include_obfuscation":true} {"x":1}"#),
    ("frequency_penalty", PENALTY),
    ("presence_penalty", PENALTY),
    ("repetition_penalty", PENALTY),
    ("dry_multiplier", PENALTY),
    ("dry_base", PENALTY),
    ("dry_allowed_length", LENGTH),
    ("stop_on_repetition", BOOLEAN),
    ("logprobs", BOOLEAN),
    ("top_logprobs", TOP_LOGPROBS),
    ("stop", STOP),
    ("seed", INTEGER),
    ("max_tokens", INTEGER),
];

const CHAT: &[(&str, Values)] = &[
    ("model", TEXT),
    ("messages", MESSAGE_LISTS),
    ("max_completion_tokens", INTEGER),
    ("max_tokens", INTEGER),
    ("stream", BOOLEAN),
    ("temperature", NUMBER),
    ("top_p", NUMBER),
    ("seed", INTEGER),
    ("stop", STOP),
    ("metadata", METADATA),
    ("user", TEXT),
    ("safety_identifier", TEXT),
    ("prompt_cache_key", TEXT),
    ("parallel_tool_calls", BOOLEAN),
    ("tool_choice", WORD),
    ("stream_options", ANY),
    ("audio", ANY),
    ("frequency_penalty", PENALTY),
    ("presence_penalty", PENALTY),
    ("repetition_penalty", PENALTY),
    ("dry_multiplier", PENALTY),
    ("dry_base", PENALTY),
    ("dry_allowed_length", LENGTH),
    ("stop_on_repetition", BOOLEAN),
    ("logprobs", BOOLEAN),
    ("top_logprobs", TOP_LOGPROBS),
    ("function_call", WORD),
    ("functions", EMPTY),
    ("logit_bias", EMPTY),
    ("modalities", r#"null 5 [] [5] ["text"] ["text","text"] ["text","audio"] "text""#),
    ("moderation", ANY),
    ("n", COUNT),
    ("prediction", ANY),
    ("prompt_cache_options", ANY),
    ("prompt_cache_retention", WORD),
    ("reasoning_effort", WORD),
    ("response_format", r#"null 5 [] {} {"type":"text"} {"type":"json_object"} {"type":5} {"typ":"text"}"#),
    ("service_tier", WORD),
    ("store", BOOLEAN),
    ("tools", EMPTY),
    ("verbosity", WORD),
    ("web_search_options", ANY),
    ("max_output_tokens", INTEGER),
    ("top_k", INTEGER),
];

const GOOD_GENERATION: &[(&str, &str)] =
    &[("model", r#""none""#), ("instructions", r#""i""#), ("input", r#""x""#), ("max_output_tokens", "8")];
const GOOD_CONVERSATION: &[(&str, &str)] = &[("model", r#""none""#), ("input", r#""x""#)];

const ENDPOINTS: [Endpoint; 5] = [
    Endpoint { path: "/v1/generate", good: GOOD_GENERATION, fields: GENERATION },
    Endpoint { path: "/v1/tokens", good: GOOD_GENERATION, fields: GENERATION },
    Endpoint { path: "/v1/responses", good: GOOD_CONVERSATION, fields: CONVERSATION },
    Endpoint { path: "/v1/responses/input_tokens", good: GOOD_CONVERSATION, fields: CONVERSATION },
    Endpoint {
        path: "/v1/chat/completions",
        good: &[("model", r#""none""#), ("messages", r#"[{"role":"user","content":"x"}]"#)],
        fields: CHAT,
    },
];

/// Unknown names that resemble known ones.
const UNKNOWN: [&str; 16] = [
    "",
    " model",
    "Model",
    "modle",
    "models",
    "instruction",
    "inputs",
    "message",
    "max_output_token",
    "max_token",
    "temprature",
    "top-p",
    "stream_option",
    "tool",
    "zzzzzzzzzz",
    "ключ",
];

/// Bodies that are not JSON, not an object, or not even text.
const RAW: [&[u8]; 27] = [
    b"",
    b"  ",
    b"null",
    b"5",
    b"\"x\"",
    b"[]",
    b"true",
    b"{",
    b"}",
    b"{}",
    b"{}x",
    b"{} {}",
    b"{} ",
    b"{\"model\":",
    b"{\"model\" \"m\"}",
    b"{\"model\":\"m\",}",
    b"{'model':'m'}",
    b"{model:1}",
    b"{\"model\":NaN}",
    b"{\"model\":01}",
    b"{\"model\":1e400}",
    b"{\"model\":\"\n\"}",
    b"{\"model\":\"\\ud800\"}",
    b"{\"model\":\"\\x\"}",
    b"\xff",
    b"{\"model\":\"\xc3\x28\"}",
    b"\xef\xbb\xbf{}",
];

/// Builds message lists for the path whose text parts have this type.
fn message_lists(part: &str) -> Vec<String> {
    let of = |message: &str| format!("[{message}]");
    let with = |field: &str| of(&format!(r#"{{"role":"user","content":"x",{field}}}"#));
    let content = |content: &str| of(&format!(r#"{{"role":"user","content":{content}}}"#));
    let in_part = |fields: &str| content(&format!("[{{{fields}}}]"));
    let mut lists = vec![
        of(r#"{"role":"user"}"#),
        of(r#"{"content":"x"}"#),
        of(r#"{"role":"user","contents":"x"}"#),
        of(r#"{"roll":"user","content":"x"}"#),
        of(r#"{"role":"user","content":"x","role":"user"}"#),
        of(r#"{"role":"user","content":"x"},5"#),
        of(r#"{"role":"user","content":"x"},{"role":"tool","content":"y"}"#),
        of(r#"{"role":"user","content":""},{"role":"assistant","content":[]}"#),
        of(r#"{"role":"user","content":"x"},{"role":"user","content":[{"type":"zzz"}]}"#),
        of(&format!(r#"{{"role":"user","content":"x","a{}":1}}"#, "b".repeat(80))),
    ];
    for role in [
        "null",
        "5",
        r#""""#,
        r#""tool""#,
        r#""User""#,
        r#""developer""#,
        r#""system""#,
        r#""assistant""#,
        "[]",
    ] {
        lists.push(of(&format!(r#"{{"role":{role},"content":"x"}}"#)));
    }
    for value in ["null", "5", "true", "{}", "[]", "[5]", r#"["x"]"#, "[null]", "[{}]", "[[]]", r#""""#] {
        lists.push(content(value));
    }
    for field in [
        "name",
        "nme",
        "refusal",
        "tool_call_id",
        "function_call",
        "audio",
        "id",
        "status",
        "phase",
        "type",
        "zzzz",
    ] {
        for value in ["null", "5", r#""x""#, r#""message""#, r#""final_answer""#, "{}"] {
            lists.push(with(&format!(r#""{field}":{value}"#)));
        }
    }
    for field in ["tool_calls", "annotations"] {
        for value in ["null", "5", "[]", "[{}]", "{}"] {
            lists.push(with(&format!(r#""{field}":{value}"#)));
        }
    }
    lists.push(of(r#"{"type":"item_reference","id":"x"}"#));
    lists.push(of(r#"{"type":"function_call_output","call_id":"x","output":"y"}"#));
    for kind in ["text", "input_text", "output_text", "image_url", "input_file", "Text", ""] {
        lists.push(in_part(&format!(r#""type":"{kind}","text":"x""#)));
    }
    for fields in [
        r#""text":"x""#.to_owned(),
        r#""typ":"text","text":"x""#.to_owned(),
        r#""type":5,"text":"x""#.to_owned(),
        r#""type":null,"text":"x""#.to_owned(),
        format!(r#""type":"{part}""#),
        format!(r#""type":"{part}","txt":"x""#),
        format!(r#""type":"{part}","text":null"#),
        format!(r#""type":"{part}","text":5"#),
        format!(r#""type":"{part}","text":"x","text":"y""#),
        format!(r#""type":"{part}","text":"x","txet":"y""#),
        format!(r#""type":"{part}","text":"x","annotations":[],"logprobs":null"#),
        format!(r#""type":"{part}","text":"x","annotations":[{{}}]"#),
        format!(r#""type":"{part}","text":"x","prompt_cache_breakpoint":{{}}"#),
    ] {
        lists.push(in_part(&fields));
    }
    lists
}

/// Bodies with several errors, given as fields added to the valid ones: pins which error is reported first.
const SEVERAL: &[&str] = &[
    r#""modle":1,"temperature":3"#,
    r#""temperature":3,"top_p":3"#,
    r#""top_p":3,"temperature":"x""#,
    r#""zzzz":1,"yyyy":1"#,
    r#""zzzz":1,"stop":[1]"#,
    r#""zzzz":1,"n":2"#,
    r#""n":2,"user":5"#,
    r#""zzzz":1,"top_k":1048577"#,
    r#""zzzz":1,"top_k":0"#,
    r#""zzzz":1,"min_p":2"#,
    r#""min_p":2,"seed":-1"#,
    r#""top_k":1048577,"seed":-1"#,
    r#""zzzz":1,"tools":[1]"#,
    r#""tool_choice":"required","tools":[1]"#,
    r#""metadata":{"a":1},"user":5"#,
    r#""stream":false,"stream_options":{}"#,
    r#""stream":true,"stream_options":5"#,
    r#""stream":true,"stream_options":{}"#,
    r#""stream":true,"stream_options":{"include_usage":5}"#,
    r#""stream":true,"stream_options":{"include_usages":true}"#,
    r#""stream":true,"stream_options":{"continuous_usage_stats":"x"}"#,
    r#""stream":true,"stream_options":{"include_obfuscation":true}"#,
    r#""stream":true,"stream_options":{"include_obfuscation":false,"include_usage":true}"#,
    r#""stream":true,"stream_options":{"zzzz":true,"include_obfuscation":true}"#,
    r#""max_tokens":5,"max_completion_tokens":6"#,
    r#""max_tokens":5,"max_completion_tokens":5"#,
    r#""max_tokens":0,"max_completion_tokens":0"#,
    r#""logprobs":true,"top_logprobs":20"#,
    r#""logprobs":true,"top_logprobs":21"#,
    r#""logprobs":false,"top_logprobs":1"#,
    r#""include":["message.output_text.logprobs"],"top_logprobs":20"#,
    r#""include":["reasoning.encrypted_content"],"top_logprobs":1"#,
    r#""frequency_penalty":3,"top_logprobs":21"#,
    r#""zzzz":1,"dry_base":0"#,
    r#""stop":["a"],"stop":["a"]"#,
    r#""s\u0074op":["a"],"stop":["a"]"#,
    r#""metadata":{"a":"b","a":"b"}"#,
];

struct Case {
    name: String,
    body: Vec<u8>,
}

impl Endpoint {
    fn object<'a>(&self, change: &'a str, to: Option<&'a str>) -> Vec<u8> {
        let others = self.good.iter().filter(|(name, _)| *name != change).copied();
        let fields: Vec<String> = others
            .chain(to.map(|value| (change, value)))
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    }

    /// The valid fields followed by `more`.
    fn and(&self, more: &str) -> Vec<u8> {
        let good: Vec<String> = self.good.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{},{more}}}", good.join(",")).into_bytes()
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, body: Vec<u8>| cases.push(Case { name, body });
        for raw in RAW {
            add(format!("body {}", raw.escape_ascii()), raw.to_vec());
        }
        for depth in [126, 127, 128, 200_000] {
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            add(format!("stop nested {depth} deep"), self.object("stop", Some(&nested)));
        }
        add("a body of 2 MiB".to_owned(), vec![b' '; 2 << 20]);
        for (name, _) in self.good {
            add(format!("without {name}"), self.object(name, None));
        }
        for (field, values) in self.fields {
            for value in values.split_whitespace() {
                add(format!("{field} = {value}"), self.object(field, Some(value)));
            }
        }
        for (name, chars) in [("stop", 256), ("stop", 257), ("user", 300)] {
            let value = format!("\"{}\"", "é".repeat(chars));
            add(format!("{name} of {chars} characters"), self.object(name, Some(&value)));
        }
        for (name, length, value_length) in
            [("a name", 64, 512), ("a long name", 65, 1), ("a long value", 1, 513)]
        {
            let metadata = format!(r#"{{"{}":"{}"}}"#, "n".repeat(length), "é".repeat(value_length));
            add(format!("metadata with {name}"), self.object("metadata", Some(&metadata)));
        }
        for count in [16, 17] {
            let entries: Vec<String> = (0..count).map(|number| format!(r#""{number}":"x""#)).collect();
            let metadata = format!("{{{}}}", entries.join(","));
            add(format!("metadata of {count} entries"), self.object("metadata", Some(&metadata)));
        }
        for name in UNKNOWN {
            add(format!("unknown {name:?}"), self.object(name, Some("1")));
        }
        let long = "z".repeat(100);
        add("an unknown field of 100 characters".to_owned(), self.object(&long, Some("1")));
        for (name, near) in
            [("model", "modle"), ("model", "Model"), ("input", "inputs"), ("messages", "message")]
        {
            let mut fields = String::from_utf8(self.object(name, None)).unwrap();
            fields.insert_str(1, &format!(r#""{near}":"m","#));
            add(format!("{near} for {name}"), fields.into_bytes());
        }
        for more in SEVERAL {
            add(format!("and {more}"), self.and(more));
        }
        for more in [r#""top_k":1048577"#, r#""zzzz":1"#] {
            let body = String::from_utf8(self.and(more)).unwrap();
            let body = body.replace(r#""i""#, r#""""#).replace(r#""x""#, r#""""#);
            add(format!("both texts empty and {more}"), body.into_bytes());
        }
        let lists = self.fields.iter().find(|(_, values)| *values == MESSAGE_LISTS);
        let Some((list, _)) = lists else { return cases };
        let part = if *list == "messages" { "text" } else { "input_text" };
        for messages in message_lists(part) {
            add(format!("{list} = {messages}"), self.object(list, Some(&messages)));
        }
        for count in [MAX_TURNS, MAX_TURNS + 1] {
            let messages = format!("[{}]", vec![r#"{"role":"user","content":"x"}"#; count].join(","));
            add(format!("{count} {list}"), self.object(list, Some(&messages)));
        }
        cases
    }
}

/// Formats a response as one line, for either error shape.
fn outcome(status: u16, reply: &Value) -> String {
    let error = &reply["error"];
    let text =
        |name: &str, other: &str| error[name].as_str().or(error[other].as_str()).unwrap_or("-").to_owned();
    let code = text("code", "code");
    match (status, code.as_str()) {
        (404, "unknown_model" | "model_not_found") => "accepted".to_owned(),
        _ => format!("{status} {code} {}: {}", text("field", "param"), text("reason", "message")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn body_errors_match_the_snapshot() {
    let test_server = TestServer::start(Arc::new(ScriptedEngine::new(1_000, |_, _| {}))).await;
    let client = test_server.client();
    let mut found = String::new();
    for endpoint in &ENDPOINTS {
        for Case { name, body } in endpoint.cases() {
            let request = test_server.post_bytes(&client, endpoint.path, body);
            let reply = request.send().await.unwrap();
            let status = reply.status().as_u16();
            let reply = outcome(status, &reply.json().await.unwrap());
            writeln!(found, "{} | {name} | {reply}", endpoint.path).unwrap();
        }
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/body_errors.txt");
    if std::env::var_os("CHANCERY_RENEW_DOCS").is_some() {
        std::fs::write(file, &found).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap();
    let differs = |(found, expected): &(&str, &str)| found != expected;
    let changed: Vec<_> = found.lines().zip(expected.lines()).filter(differs).take(20).collect();
    assert!(changed.is_empty(), "found and expected: {changed:#?}");
    assert_eq!(found.lines().count(), expected.lines().count());
}
