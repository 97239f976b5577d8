//! Prefix caches of servers: each account has its own salt, and cached tokens are reported only where it is honoured.

use crate::fixtures::{
    collect_reply, engine, engine_with, generate, instructed_job, job, settings, word_counter,
};
use chancery_domain::{AccountId, SecretToken, SeededRandomness};
use chancery_engine::{Engine, Finished, StopReason};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, OtherRoutes, Step, cached_usage, finish, text,
};
use serde_json::Value;

fn cached_reply() -> Vec<Step> {
    vec![
        Step::Stream,
        text("fine"),
        finish("stop"),
        cached_usage(64, 1, 48),
        Step::Event("[DONE]".to_owned()),
        Step::End,
    ]
}

fn rejection(message: &str) -> Vec<Step> {
    vec![Step::Answer(400, "", serde_json::json!({"error": {"message": message}}).to_string())]
}

async fn vllm(script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> FaultyServer {
    FaultyServer::start_with(OtherRoutes::vllm(), script).await
}

fn sent_salts(server: &FaultyServer) -> Vec<Option<String>> {
    let salt = |body: &String| {
        let body: Value = serde_json::from_str(body).unwrap();
        body.get("cache_salt").map(|salt| salt.as_str().unwrap().to_owned())
    };
    server.jobs().iter().map(salt).collect()
}

async fn run_as(engine: &UpstreamEngine, account: i64) {
    let job = chancery_engine::Job { account: AccountId(account), ..job(engine, "x", 16) };
    collect_reply(engine.start(job).unwrap()).await.unwrap();
}

#[tokio::test]
async fn each_account_has_its_own_secret_salt() {
    let server = vllm(|_| cached_reply()).await;
    let engine_of_one = engine(&[&server]).await;
    for account in [1, 1, 2] {
        run_as(&engine_of_one, account).await;
    }
    let same_secret = engine(&[&server]).await;
    run_as(&same_secret, 1).await;
    let cache_salt_secret = SecretToken::generate(&SeededRandomness::new(99));
    let other_secret = engine_with(UpstreamSettings { cache_salt_secret, ..settings(&[&server]) }).await;
    run_as(&other_secret, 1).await;
    let salts = sent_salts(&server);
    assert!(salts.iter().all(|salt| salt.as_ref().unwrap().len() == 64), "{salts:?}");
    assert_eq!(salts[0], salts[1]);
    assert_eq!(salts[0], salts[3], "all nodes derive the same salt");
    assert_ne!(salts[0], salts[2], "another account");
    assert_ne!(salts[0], salts[4], "it cannot be derived from the account alone");
}

#[tokio::test]
async fn cached_tokens_are_reported_only_by_servers_that_honour_the_salt() {
    let routes = |owner: &str, version: Option<&str>| OtherRoutes {
        list: format!(r#"{{"data":[{{"id":"their-m","owned_by":"{owner}","max_model_len":4096}}]}}"#),
        version: version.map(|version| format!(r#"{{"version":"{version}"}}"#)),
        tokenize: None,
        generated_tokens: None,
    };
    for (routes, expected) in [
        (routes("vllm", Some("0.11.0")), 48),
        (routes("vllm", Some("0.32.0+cpu")), 48),
        (routes("vllm", Some("1.0.0rc1")), 48),
        (routes("vllm", Some("0.10.1")), 0),
        (routes("vllm", Some("dev")), 0),
        (routes("vllm", None), 0),
        (routes("sglang", Some("0.11.0")), 0),
        (routes("llamacpp", None), 0),
        (OtherRoutes::llama_server(), 0),
        (OtherRoutes::default(), 0),
    ] {
        let name = format!("{} {:?}", routes.list, routes.version);
        let server = FaultyServer::start_with(routes, |_| cached_reply()).await;
        let (_, ended) = generate(&engine(&[&server]).await, "x").await.unwrap();
        assert_eq!(ended.cached_tokens, expected, "{name}");
    }
}

#[tokio::test]
async fn server_that_rejects_the_salt_gets_the_job_without_it_and_no_salt_again() {
    for routes in [OtherRoutes::vllm(), OtherRoutes::default()] {
        let server = FaultyServer::start_with(routes, |number| match number {
            0 => rejection("unknown field cache_salt"),
            _ => cached_reply(),
        })
        .await;
        let engine = engine(&[&server]).await;
        for _ in 0..2 {
            let (output, ended) = generate(&engine, "x").await.unwrap();
            assert_eq!((output.as_str(), ended.cached_tokens), ("fine", 0), "its cache is shared");
        }
        let salted: Vec<bool> = sent_salts(&server).iter().map(Option::is_some).collect();
        assert_eq!(salted, [true, false, false]);
        let body: Value = serde_json::from_str(&server.jobs()[2]).unwrap();
        assert_eq!(body["stream_options"]["continuous_usage_stats"], true, "only what it named is left out");
    }
}

#[tokio::test]
async fn strict_server_that_names_nothing_still_gets_its_job() {
    // Rejects empty turns, the salt and continuous usage, whichever comes, without saying why.
    let server = FaultyServer::start(|number| match number {
        0 | 1 => rejection("bad request"),
        _ => cached_reply(),
    })
    .await;
    let engine = engine(&[&server]).await;
    assert_eq!(generate(&engine, "x").await.unwrap().0, "fine");
    generate(&engine, "x").await.unwrap();
    let salted: Vec<bool> = sent_salts(&server).iter().map(Option::is_some).collect();
    assert_eq!(salted, [true, true, false, false]);
}

#[tokio::test]
async fn error_that_quotes_the_caller_does_not_disable_the_salt() {
    let server = vllm(|number| match number {
        0..=3 => rejection("invalid input: cache_salt"),
        _ => cached_reply(),
    })
    .await;
    let engine = engine(&[&server]).await;
    assert!(generate(&engine, "cache_salt").await.is_err());
    assert_eq!(server.jobs().len(), 4, "each thing that this side can leave out is left out once");
    let (_, ended) = generate(&engine, "x").await.unwrap();
    assert_eq!(ended.cached_tokens, 48);
    assert!(sent_salts(&server).last().unwrap().is_some());
}

/// A complete reply to a prompt of which the server had so many tokens cached.
fn reply_with_cached(cached_tokens: u32) -> Vec<Step> {
    let usage = cached_usage(cached_tokens, 1, cached_tokens);
    vec![Step::Stream, text("fine"), finish("stop"), usage, Step::Event("[DONE]".to_owned()), Step::End]
}

/// Runs a job of this account with instructions of 60 words.
async fn run_instructed(engine: &UpstreamEngine, account: i64, input: &str) -> Finished {
    let job = instructed_job(engine, &"word ".repeat(60), input, 16);
    let job = chancery_engine::Job { account: AccountId(account), ..job };
    collect_reply(engine.start(job).unwrap()).await.unwrap().1
}

/// Otherwise a caller could have a prompt computed, hang up before the first token, and send it again at the lower
/// price.
#[tokio::test]
async fn only_turns_of_a_billed_job_count_as_billed_before() {
    let server = vllm(|number| match number {
        0 => vec![Step::Stream, Step::Hang],
        _ => reply_with_cached(4_000),
    })
    .await;
    let engine =
        engine_with(UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[&server]) }).await;
    let job = instructed_job(&engine, &"word ".repeat(60), "Two words.", 16);
    let unbilled = engine.start(job).unwrap().with_work_in_a_task();
    server.until_jobs(1).await;
    unbilled.cancel();
    let (_, ended) = collect_reply(unbilled).await.unwrap();
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 0));

    let first = run_instructed(&engine, 1, "Two words.").await;
    assert_eq!((first.cached_tokens, first.billed_cached_tokens), (4_000, 0), "they were not billed before");
    let scaffolding =
        instructed_job(&engine, &"word ".repeat(60), "Two words.", 16).prompt.scaffolding_tokens();
    let again = run_instructed(&engine, 1, "Two words.").await;
    assert_eq!(again.billed_cached_tokens, 62 + scaffolding);
    let follow_up = run_instructed(&engine, 1, "A new question.").await;
    assert_eq!(follow_up.billed_cached_tokens, 60 + scaffolding, "the new turn was never billed");
    let others = run_instructed(&engine, 2, "Two words.").await;
    assert_eq!(others.billed_cached_tokens, 0, "another account");
}

#[tokio::test]
async fn billed_cached_tokens_never_exceed_what_the_server_reports() {
    let server = vllm(|_| reply_with_cached(32)).await;
    let engine =
        engine_with(UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[&server]) }).await;
    for expected in [0, 32] {
        assert_eq!(run_instructed(&engine, 1, "Two words.").await.billed_cached_tokens, expected);
    }
}

#[tokio::test]
async fn nothing_is_billed_as_cached_without_a_tokenizer() {
    let server = vllm(|_| reply_with_cached(4_000)).await;
    let engine = engine(&[&server]).await;
    for _ in 0..2 {
        let ended = run_instructed(&engine, 1, "Two words.").await;
        assert_eq!((ended.cached_tokens, ended.billed_cached_tokens), (4_000, 0));
    }
}
