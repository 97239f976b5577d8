//! The upstream engine, against a server in a process of its own, whose instructions are not counted.

use chancery_bench::instant_upstream::{MODEL, TOKENS};
use chancery_bench::keep_alive::Connection;
use chancery_bench::processes::{ServerProcess, free_address};
use chancery_domain::{AccountId, OsRandomness, SecretToken, SeededRandomness, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling, Turn};
use chancery_engine_upstream::{Servers, Timeouts, UpstreamEngine, UpstreamSettings};
use std::process::Command;
use std::sync::Arc;

pub async fn read_replies(iterations: usize) {
    let address = free_address().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["upstream", &address.to_string()]);
    let mut server = ServerProcess::spawn("the upstream", command, tempfile::tempdir().unwrap()).unwrap();
    server.wait_until_ready(async || Connection::open(address).await.is_ok()).await.unwrap();
    let settings = UpstreamSettings {
        model: MODEL.to_owned(),
        upstream_model: MODEL.to_owned(),
        servers: Servers { endpoints: vec![format!("http://{address}/v1")], api_key: None },
        context_tokens: Some(8_192),
        tokenizer: None,
        timeouts: Timeouts::default(),
        hedge_after: None,
        cache_salt_secret: SecretToken::generate(&OsRandomness),
    };
    let randomness = Arc::new(SeededRandomness::new(7));
    let engine = UpstreamEngine::start(settings, Arc::new(SystemClock), randomness).await.unwrap();
    let turns = Turn::from_instructions_and_input("Be brief and polite.", "Thank the client.");
    for _ in 0..iterations {
        let job = Job {
            account: AccountId(1),
            prompt: engine.prepare(&turns).unwrap(),
            max_output_tokens: 64,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            needs_partial_text: true,
            stop_on_repetition: false,
            top_logprobs: None,
        };
        let mut generation = engine.start(job).unwrap();
        let finished = loop {
            if let Event::Finished(finished) = generation.next().await.unwrap() {
                break finished;
            }
        };
        assert_eq!(finished.output_tokens as usize, TOKENS);
    }
}
