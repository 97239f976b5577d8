//! Engines and jobs for these tests.

use chancery_domain::{AccountId, ManualClock, SecretToken, SeededRandomness, SystemClock, UnixMillis};
use chancery_engine::{
    EndpointState, Engine, EngineError, Event, Finished, Generation, Job, Sampling, TokenLogprobs, Turn,
};
use chancery_engine_upstream::{Servers, Timeouts, TokenCounter, UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::FaultyServer;
use std::sync::Arc;
use std::time::Duration;

/// Long enough for a busy machine.
pub const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(10),
    first_token: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    total: Duration::from_secs(60),
};

/// Short, so that servers that hang cost little time.
pub const SHORT_TIMEOUTS: Timeouts =
    Timeouts { first_token: Duration::from_millis(1_500), idle: Duration::from_millis(1_500), ..TIMEOUTS };

pub fn servers(servers: &[&FaultyServer]) -> Servers {
    let endpoints = servers.iter().map(|server| server.url.clone()).collect();
    Servers { endpoints, api_key: Some("secret".to_owned()) }
}

pub fn settings(pool: &[&FaultyServer]) -> UpstreamSettings {
    settings_for(servers(pool))
}

pub fn settings_for(servers: Servers) -> UpstreamSettings {
    UpstreamSettings {
        model: "m".to_owned(),
        upstream_model: "their-m".to_owned(),
        servers,
        context_tokens: Some(4_096),
        tokenizer: None,
        timeouts: TIMEOUTS,
        hedge_after: None,
        cache_salt_secret: SecretToken::generate(&SeededRandomness::new(7)),
    }
}

pub async fn engine_with(settings: UpstreamSettings) -> UpstreamEngine {
    let randomness = Arc::new(SeededRandomness::new(1));
    UpstreamEngine::start(settings, Arc::new(SystemClock), randomness).await.unwrap()
}

/// An engine whose circuit breakers follow the test's clock.
pub async fn engine_at(settings: UpstreamSettings, clock: &Arc<ManualClock>) -> UpstreamEngine {
    let randomness = Arc::new(SeededRandomness::new(1));
    UpstreamEngine::start(settings, Arc::<ManualClock>::clone(clock), randomness).await.unwrap()
}

pub fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(UnixMillis(0)))
}

pub async fn engine(pool: &[&FaultyServer]) -> UpstreamEngine {
    engine_with(settings(pool)).await
}

/// A tokenizer with one token per word.
pub fn word_counter() -> TokenCounter {
    counter(&serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "decoder": null,
        "added_tokens": [{"id": 1, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "<end>": 1}, "unk_token": "[UNK]"},
    }))
}

pub fn counter(tokenizer: &serde_json::Value) -> TokenCounter {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), tokenizer.to_string()).unwrap();
    TokenCounter::read(file.path()).unwrap()
}

/// A job without instructions: no server has its prefix cached, so idle servers take turns.
pub fn job(engine: &UpstreamEngine, input: &str, max_output_tokens: u32) -> Job {
    instructed_job(engine, "", input, max_output_tokens)
}

pub fn instructed_job(
    engine: &UpstreamEngine,
    instructions: &str,
    input: &str,
    max_output_tokens: u32,
) -> Job {
    let turns = Turn::from_instructions_and_input(instructions, input);
    Job {
        account: AccountId(1),
        prompt: engine.prepare(&turns).unwrap(),
        max_output_tokens,
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        stop_on_repetition: false,
        top_logprobs: None,
        needs_partial_text: true,
    }
}

/// Runs whether or not the test waits for its events.
pub fn start(engine: &UpstreamEngine, input: &str) -> Generation {
    engine.start(job(engine, input, 16)).unwrap().with_work_in_a_task()
}

/// Reads until this text has come.
pub async fn read_until(generation: &mut Generation, expected: &str) {
    let mut output = String::new();
    while output != expected {
        let Event::Text(text) = generation.next().await.unwrap() else { panic!("it ended") };
        output += &text;
    }
}

/// A job of another account than the one that `start` uses.
pub fn start_as(engine: &UpstreamEngine, account: i64, input: &str) -> Generation {
    let job = Job { account: AccountId(account), ..job(engine, input, 16) };
    engine.start(job).unwrap().with_work_in_a_task()
}

/// Waits until the first server is in this state.
pub async fn wait_for_state(engine: &UpstreamEngine, state: EndpointState) {
    let waiting = async {
        while engine.endpoints()[0].state != state {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
}

/// Returns the whole text and the end.
pub async fn collect_reply(generation: Generation) -> Result<(String, Finished), EngineError> {
    let (_, text, ended) = collect_with_reasoning(generation).await?;
    Ok((text, ended))
}

/// Returns the whole text, its log probabilities and the end. They never precede the text.
pub async fn collect_with_logprobs(
    mut generation: Generation,
) -> Result<(String, Vec<TokenLogprobs>, Finished), EngineError> {
    let (mut text, mut logprobs) = (String::new(), Vec::new());
    loop {
        match generation.next().await? {
            Event::Reasoning(_) => {}
            Event::Text(more) => text += &more,
            Event::Logprobs(more) => {
                logprobs.extend(more);
                let bytes: usize = logprobs.iter().map(|entry: &TokenLogprobs| entry.token.bytes.len()).sum();
                assert!(bytes <= text.len(), "{bytes} bytes of tokens for {text:?}");
            }
            Event::Finished(ended) => return Ok((text, logprobs, ended)),
        }
    }
}

/// Returns the whole reasoning, the whole text and the end.
pub async fn collect_with_reasoning(
    mut generation: Generation,
) -> Result<(String, String, Finished), EngineError> {
    let (mut reasoning, mut text) = (String::new(), String::new());
    loop {
        match generation.next().await? {
            Event::Reasoning(more) => reasoning += &more,
            Event::Text(more) => text += &more,
            Event::Logprobs(_) => {}
            Event::Finished(ended) => return Ok((reasoning, text, ended)),
        }
    }
}

/// Runs in the test's own task, as a request does.
pub async fn generate(engine: &UpstreamEngine, input: &str) -> Result<(String, Finished), EngineError> {
    collect_reply(engine.start(job(engine, input, 16)).unwrap()).await
}
