//! Engines and jobs for these tests.

use chancery_domain::{AccountId, ManualClock, SeededRandomness, SystemClock, UnixMillis};
use chancery_engine::{Engine, EngineError, Event, Finished, Generation, Job, Sampling, Turn};
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
    UpstreamSettings {
        model: "m".to_owned(),
        upstream_model: "their-m".to_owned(),
        servers: servers(pool),
        context_tokens: Some(4_096),
        tokenizer: None,
        timeouts: TIMEOUTS,
        hedge_after: None,
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
    }
}

pub fn start(engine: &UpstreamEngine, input: &str) -> Generation {
    engine.start(job(engine, input, 16)).unwrap()
}

/// Returns the whole text and the end.
pub async fn collect_reply(mut generation: Generation) -> Result<(String, Finished), EngineError> {
    let mut text = String::new();
    loop {
        match generation.next().await? {
            Event::Text(more) => text += &more,
            Event::Finished(ended) => return Ok((text, ended)),
        }
    }
}

pub async fn generate(engine: &UpstreamEngine, input: &str) -> Result<(String, Finished), EngineError> {
    collect_reply(start(engine, input)).await
}
