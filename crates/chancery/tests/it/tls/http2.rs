//! HTTP/2 next to HTTP/1.1, on the real binary.

use super::{TestCertificate, client_trusting, https, secured};
use crate::server::{Firm, Server, eventually, request};
use axum::body::Body;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connects to the API with HTTP/2 as the only protocol.
async fn connect(server: &Server, certificate: &TestCertificate) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.certificate_pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(server.api_address()).await.unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream);
    stream.await.unwrap()
}

async fn connect_http2(server: &Server, certificate: &TestCertificate) -> SendRequest<Body> {
    let stream = TokioIo::new(connect(server, certificate).await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

fn post(key: &str, body: &Value) -> Request<Body> {
    Request::post("https://localhost/v1/generate")
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

#[tokio::test]
async fn reset_stream_is_a_hang_up_and_its_connection_goes_on() {
    let certificate = TestCertificate::local();
    let firm = secured(Firm::new(), &certificate);
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let mut sender = connect_http2(&server, &certificate).await;
    let mut body = request("Translate to French.", "", 8_000);
    body["stream"] = true.into();
    let stream = sender.send_request(post(&key, &body)).await.unwrap();
    assert_eq!((stream.status().as_u16(), stream.version()), (200, Version::HTTP_2));
    server.generating().await;
    drop(stream);
    let billed = async || firm.json(&["usage", "--json"])["total"].clone();
    eventually("the hang-up is billed", Duration::from_secs(30), async || billed().await["requests"] == 1)
        .await;
    let tokens = billed().await["output_tokens"].as_u64().unwrap();
    assert!((1..8_000).contains(&tokens), "{tokens}");

    let reply = sender.send_request(post(&key, &request("", "Say hello.", 1))).await.unwrap();
    assert_eq!(reply.status(), 200, "the same connection");
}

#[tokio::test]
async fn connection_has_at_most_100_streams() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];
    let certificate = TestCertificate::local();
    let firm = secured(Firm::new(), &certificate);
    let server = firm.start();
    let mut stream = connect(&server, &certificate).await;
    stream.write_all(&[PREFACE, &EMPTY_SETTINGS].concat()).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "a server begins with its settings");
    let mut settings = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    let max_streams =
        settings.chunks(6).find(|setting| setting.starts_with(&MAX_CONCURRENT_STREAMS)).unwrap();
    assert_eq!(max_streams, [0, 3, 0, 0, 0, 100]);
}

#[tokio::test]
async fn client_without_http2_gets_http1() {
    let certificate = TestCertificate::local();
    let firm = secured(Firm::new(), &certificate);
    let server = firm.start();
    let client = client_trusting(&[&certificate]).http1_only().build().unwrap();
    let reply = client.get(format!("{}/v1/models", https(&server.api))).send().await.unwrap();
    assert_eq!(reply.version(), Version::HTTP_11);
}

/// A browser's form over HTTP/2: its host is in the URI only.
#[tokio::test]
async fn same_origin_rule_compares_with_the_host_of_http2() {
    let certificate = TestCertificate::local();
    let firm = secured(Firm::new(), &certificate);
    let mut server = firm.start();
    server.api = server.portal.replace("localhost", "127.0.0.1");
    let mut sender = connect_http2(&server, &certificate).await;
    for (origin, is_same) in [("https://localhost", true), ("https://evil.example", false)] {
        let form = Request::post("https://localhost/auth/sign-out")
            .header("origin", origin)
            .header("accept", "application/json")
            .body(Body::empty())
            .unwrap();
        let reply = sender.send_request(form).await.unwrap();
        assert_eq!(reply.status() == 403, !is_same, "{origin}: {}", reply.status());
    }
}
