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
