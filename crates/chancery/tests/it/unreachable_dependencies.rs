//! Starts without the database or Redis: the server waits for what cannot be reached, and exits if it is rejected.

use crate::faults::proxy::{Mode, Proxy};
use crate::server::{Firm, Running, binary, client, eventually};
use chancery_test_support::{PostgresDatabase, RedisServer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

const ENOUGH_TIME: Duration = Duration::from_secs(30);

/// An address for the operations listener, which a test must know before the server is ready.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

async fn reason_not_ready(ops: &str) -> String {
    let Ok(reply) = client().get(format!("http://{ops}/readyz")).send().await else { return String::new() };
    let body: Value = reply.json().await.unwrap();
    body["reason"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn start_waits_for_unreachable_postgresql_and_redis_and_reports_it() {
    let (database, mut redis) = (PostgresDatabase::create("late_start"), RedisServer::start());
    let (proxy, url) = Proxy::before(&database.url()).await;
    proxy.set(Mode::Gone);
    redis.kill();
    let ops = free_address();
    let firm = Firm::new()
        .with("CHANCERY_DATABASE__URL", &url)
        .with("CHANCERY_LIMITS__STORE", &redis.url())
        .with("CHANCERY_OPS__LISTEN", &ops);
    let starting = tokio::task::spawn_blocking(move || (firm.start(), firm));

    eventually("it waits for the database", ENOUGH_TIME, async || {
        reason_not_ready(&ops).await.starts_with("starting: waiting for the database: PostgreSQL at ")
    })
    .await;
    let alive = client().get(format!("http://{ops}/livez")).send().await.unwrap();
    assert_eq!(alive.status().as_u16(), 200);
    proxy.set(Mode::Through);
    eventually("it waits for Redis", ENOUGH_TIME, async || {
        reason_not_ready(&ops).await.starts_with("starting: waiting for Redis: Redis at ")
    })
    .await;
    redis.start_again();

    let (server, _firm) = starting.await.unwrap();
    assert_eq!(reason_not_ready(&ops).await, "");
    for message in [
        "waiting for the database",
        "the database can be reached",
        "waiting for Redis",
        "Redis can be reached",
    ] {
        server.wait_for_log(&format!("\"message\":\"{message}\""));
    }
}

#[tokio::test]
async fn sigterm_ends_the_wait() {
    let ops = free_address();
    let firm = Firm::new()
        .with("CHANCERY_LIMITS__STORE", "redis://:hunter2@127.0.0.1:1")
        .with("CHANCERY_OPS__LISTEN", &ops);
    let mut command = firm.program(binary());
    let child = command.arg("serve").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = Running(child.unwrap());
    let mut reason = String::new();
    eventually("it waits for Redis", ENOUGH_TIME, async || {
        reason = reason_not_ready(&ops).await;
        reason.contains("waiting for Redis: Redis at redis://127.0.0.1:1/0 is not reachable")
    })
    .await;
    assert!(!reason.contains("hunter2"), "{reason}");
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn rejection_by_postgresql_ends_the_start_and_says_why() {
    let database = PostgresDatabase::create("rejected");
    let url = database.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    for (rejected, why) in [
        (format!("{server}/no_such_database"), "create it with `createdb`"),
        (url.replacen("postgres@", "nobody:hunter2@", 1), "check the user and password"),
        (format!("{url}?sslmode=require"), "server does not support TLS"),
    ] {
        let text = Firm::new().with("CHANCERY_DATABASE__URL", &rejected).fail(&["serve"]);
        assert!(text.contains("database.url: PostgreSQL at 127.0.0.1:"), "{text}");
        assert!(text.contains("rejects the connection: ") && text.contains(why), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("waiting for"), "{text}");
    }
}

#[test]
fn rejection_by_redis_ends_the_start_and_says_why() {
    let redis = RedisServer::start();
    redis.command(&["config", "set", "requirepass", "s3cret"]);
    let with_password = |password: &str| redis.url().replace("redis://", &format!("redis://:{password}@"));
    for rejected in [redis.url(), with_password("hunter2")] {
        let text = Firm::new().with("CHANCERY_LIMITS__STORE", &rejected).fail(&["serve"]);
        assert!(text.contains("limits.store: Redis at redis://127.0.0.1:"), "{text}");
        assert!(
            text.contains("rejects the connection: ") && text.contains("check the user and password"),
            "{text}"
        );
        assert!(!text.contains("hunter2") && !text.contains("waiting for"), "{text}");
    }
    drop(Firm::new().with("CHANCERY_LIMITS__STORE", &with_password("s3cret")).start());
}
