//! Protection of callers from each other: bounded bodies, bounded queues, requests that never end.

use crate::office::sign_in;
use crate::server::{Firm, Reply, Server, client, request};
use reqwest::header::COOKIE;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

#[tokio::test]
async fn chunked_body_is_cut_off_at_the_limit() {
    let firm = Firm::new().with("CHANCERY_API__MAX_BODY_BYTES", "2000");
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let mut stream = TcpStream::connect(server.api_address()).unwrap();
    write!(
        stream,
        "POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .unwrap();
    for _ in 0..10 {
        if write!(stream, "400\r\n{}\r\n", "x".repeat(1024)).is_err() {
            break;
        }
    }
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 413");
}

#[tokio::test]
async fn burst_over_the_queue_is_rejected_with_retry_after() {
    let firm = Firm::new().with("CHANCERY_MODELS__0__SLOTS", "1");
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let body = request("", "Say hello.", 2);
    let (client, mut calls) = (client(), JoinSet::new());
    for _ in 0..400 {
        let call = client.post(format!("{}/v1/generate", server.api)).bearer_auth(&key).json(&body);
        calls.spawn(async move { Reply::read(call.send().await.unwrap()).await });
    }
    let replies = calls.join_all().await;
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    let rejected: Vec<_> = replies.iter().filter(|reply| reply.status == 503).collect();
    assert_eq!(served + rejected.len(), 400);
    assert!(served > 0 && !rejected.is_empty(), "{served} served");
    for reply in &rejected {
        assert_eq!(reply.code(), "overloaded");
        assert!(reply.header("retry-after").parse::<u32>().unwrap() >= 1);
    }
    let usage = firm.json(&["usage", "--json"]);
    assert_eq!(usage["total"]["requests"], json!(served));
    // Requests that the engine rejects do not count against the limits.
    let rate_limit_status = server.get("/v1/models", &key).await;
    let counted = |name: &str| rate_limit_status.header(name).parse::<usize>().unwrap();
    assert_eq!(counted("x-ratelimit-limit-requests") - counted("x-ratelimit-remaining-requests"), served);
}

#[tokio::test]
async fn caller_still_sending_its_body_receives_the_error() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let body = request("", &"x".repeat(8_000_000), 1).to_string();
    for _ in 0..5 {
        let call =
            client().post(format!("{}/v1/generate", server.api)).header("content-type", "application/json");
        let reply = Reply::read(call.bearer_auth(&key).body(body.clone()).send().await.unwrap()).await;
        assert_eq!((reply.status, reply.code()), (413, "request_too_large"));
        let call =
            client().post(format!("{}/v1/generate", server.api)).header("content-type", "application/json");
        let reply = Reply::read(call.bearer_auth("nobody").body(body.clone()).send().await.unwrap()).await;
        assert_eq!((reply.status, reply.code()), (401, "invalid_api_key"));
    }
}

#[tokio::test]
async fn idle_connections_of_one_address_keep_nobody_out() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    // With so few descriptors, the API has 54 connections.
    let server = firm.start_limited("ulimit -n 400");
    let idle: Vec<_> = (0..300).map(|_| TcpStream::connect(server.api_address()).unwrap()).collect();
    // The client opens a new connection for each.
    for _ in 0..3 {
        let call = client().get(format!("{}/v1/models", server.api)).bearer_auth(&key);
        let reply = Reply::read(call.timeout(Duration::from_secs(5)).send().await.unwrap()).await;
        assert_eq!(reply.status, 200);
    }
    let mut oldest = &idle[0];
    oldest.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(oldest.read(&mut [0]).unwrap(), 0, "the oldest was not closed");
}

/// A line of `/proc/PID/status`.
fn memory_mib(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[tokio::test]
async fn hashes_and_letters_leave_no_memory_behind() {
    const ATTEMPTS: u8 = 200;
    const CONCURRENT_ATTEMPTS: usize = 20;
    const LETTERS: usize = 60;
    const MAX_GROWTH_MIB: u64 = 100;
    let firm = Firm::new().with("CHANCERY_PORTAL__TRUSTED_PROXIES", "127.0.0.1");
    let server = firm.start_with(&["--demo", "--minimal"]);
    let maya = sign_in(&firm, &server.portal, "maya").await;
    let mut letters = maya.clients().await.into_iter();
    let letter = loop {
        let path = format!("/clients/{}", letters.next().unwrap()["id"]);
        if let Some(letter) = maya.json(&path).await.value()["draft_letters"].get(0) {
            break format!("{}{path}/letters/{}/pdf", server.portal, letter["id"]);
        }
    };
    let demo: Value = serde_json::from_slice(&std::fs::read(firm.data().join("demo.json")).unwrap()).unwrap();
    let http = chancery_http_client::client_builder().tls_certs_only([]).no_proxy().build().unwrap();
    let url = format!("{}/sign-in", server.auth);
    let start = memory_mib(&server, "VmRSS");
    println!("at the start {start} MiB, at most {} MiB", memory_mib(&server, "VmHWM"));

    for is_right in [false, true] {
        let mut attempts = JoinSet::new();
        for number in 0..ATTEMPTS {
            if attempts.len() == CONCURRENT_ATTEMPTS {
                attempts.join_next().await.unwrap().unwrap();
            }
            let user = &demo["users"][usize::from(number) % 3];
            let email = user["email"].as_str().unwrap().to_owned();
            let password = if is_right { user["password"].as_str().unwrap() } else { "a wrong guess" };
            // The throttles count attempts of one network, and the first ones of each for an address.
            let email = if is_right { email } else { format!("{number}{email}") };
            let form = [("email", email.as_str()), ("password", password), ("return_to", "/")];
            let form = reqwest::Url::parse_with_params("http://form.invalid/", form).unwrap();
            let call = http.post(&url).body(form.query().unwrap().to_owned());
            let call = call.header("content-type", "application/x-www-form-urlencoded");
            let call = call.header("x-forwarded-for", format!("198.51.{number}.7"));
            attempts.spawn(async move {
                let expected = if is_right { 303 } else { 422 };
                assert_eq!(call.send().await.unwrap().status(), expected, "attempt {number} was not hashed");
            });
        }
        attempts.join_all().await;
        println!("passwords, right: {is_right}: at most {} MiB", memory_mib(&server, "VmHWM"));
    }

    let mut calls = JoinSet::new();
    for _ in 0..LETTERS {
        let call = http.get(&letter).header(COOKIE, format!("session={}", maya.session));
        calls.spawn(async move {
            let pdf = call.send().await.unwrap().bytes().await.unwrap();
            assert!(pdf.starts_with(b"%PDF"), "{}", String::from_utf8_lossy(&pdf));
        });
    }
    calls.join_all().await;
    let (now, most) = (memory_mib(&server, "VmRSS"), memory_mib(&server, "VmHWM"));
    println!("letters: at most {most} MiB; now {now} MiB; growth {} MiB", most - start);
    assert!(most <= start + MAX_GROWTH_MIB, "{start} MiB at the start, at most {most} MiB");
}

#[tokio::test]
async fn bodies_that_never_come_keep_nobody_out_of_the_provider() {
    const ATTACKERS: usize = 16;
    const REQUESTS_PER_S: u64 = 110;
    // With so few descriptors, the provider has 44 connections, 5 for each address.
    let firm = Firm::new();
    let server = firm.start_limited("ulimit -n 1024");
    let address: std::net::SocketAddr = server.auth.trim_start_matches("http://").parse().unwrap();
    let mut withheld = Vec::new();
    let mut withhold = async |number: usize| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("127.0.1.{}:0", 1 + number % ATTACKERS).parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let head = format!("POST /sign-in HTTP/1.1\r\nHost: {address}\r\nContent-Length: 9\r\n\r\n");
        // The server may have closed it already.
        let _ = stream.write_all(head.as_bytes()).await;
        withheld.push(stream);
    };
    for number in 0..5 * ATTACKERS {
        withhold(number).await;
    }
    let honest = async {
        let mut served = 0;
        for number in 0..30 {
            let builder = chancery_http_client::client_builder().tls_certs_only([]).no_proxy();
            let client =
                builder.local_address(std::net::IpAddr::from([127, 0, 2, 1 + number])).build().unwrap();
            let call = client.get(format!("{}/sign-in", server.auth)).timeout(Duration::from_secs(5));
            served += usize::from(call.send().await.is_ok_and(|reply| reply.status() == 200));
        }
        served
    };
    let attack = async {
        let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / REQUESTS_PER_S));
        for number in 0.. {
            ticks.tick().await;
            withhold(number).await;
        }
    };
    let served = tokio::select! {
        served = honest => served,
        () = attack => unreachable!("it goes on"),
    };
    assert_eq!(served, 30);
}
