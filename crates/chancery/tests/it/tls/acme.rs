//! Certificates by ACME, from Pebble, the test server of Let's Encrypt. Its DNS server says that every name is this machine.

use super::TestCertificate;
use crate::server::{Firm, Reply, Running, Server, clean_command, client, eventually};
use crate::sign_in::free_port;
use serde_json::json;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Far longer than it takes.
const ENOUGH_TIME: Duration = Duration::from_secs(60);
const DOMAINS: [&str; 2] = ["api.example.com", "portal.example.com"];

struct Pebble {
    directory: String,
    /// The certificate of its own HTTPS.
    root: std::path::PathBuf,
    _processes: [Running; 2],
}

impl Pebble {
    /// Validates names at this port instead of 443.
    async fn start(folder: &Path, tls_port: u16) -> Self {
        let folder = folder.join("pebble");
        std::fs::create_dir(&folder).unwrap();
        TestCertificate::local().write(&folder);
        let (port, dns_port) = (free_port(), free_port());
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": "",
            "certificate": folder.join(super::CERTIFICATE_FILE),
            "privateKey": folder.join(super::PRIVATE_KEY_FILE),
            "httpPort": free_port(),
            "tlsPort": tls_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
        }});
        let config_file = folder.join("config.json");
        std::fs::write(&config_file, config.to_string()).unwrap();
        let dns = format!("127.0.0.1:{dns_port}");
        let management = format!("127.0.0.1:{}", free_port());
        let dns_server = spawn(
            "pebble-challtestsrv",
            &[
                "-dns01",
                &dns,
                "-http01",
                "",
                "-https01",
                "",
                "-tlsalpn01",
                "",
                "-management",
                &management,
                "-defaultIPv6",
                "",
            ],
        );
        let pebble = spawn("pebble", &["-config", config_file.to_str().unwrap(), "-dnsserver", &dns]);
        for port in [port, dns_port] {
            eventually("Pebble answers", ENOUGH_TIME, async || {
                TcpStream::connect(("127.0.0.1", port)).is_ok()
            })
            .await;
        }
        Self {
            directory: format!("https://127.0.0.1:{port}/dir"),
            root: folder.join(super::CERTIFICATE_FILE),
            _processes: [dns_server, pebble],
        }
    }
}

fn spawn(program: &str, arguments: &[&str]) -> Running {
    let mut command = clean_command(program);
    // It neither waits before it validates nor rejects valid nonces.
    command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0");
    let child = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Running(child.unwrap_or_else(|error| panic!("{program}: {error}; run `make test`, which installs it")))
}

async fn readiness(server: &Server) -> Reply {
    Reply::read(client().get(format!("{}/readyz", server.ops)).send().await.unwrap()).await
}

/// Returns the certificate that the API serves.
async fn served_certificate(server: &Server) -> Vec<u8> {
    let builder = chancery_http_client::client_builder().no_proxy().tls_danger_accept_invalid_certs(true);
    let client = builder.tls_info(true).build().unwrap();
    let reply = client.get(super::https(&server.api)).send().await.unwrap();
    let info = reply.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
    info.peer_certificate().unwrap().to_vec()
}

#[tokio::test]
async fn certificate_is_obtained_after_the_start_and_reused_by_the_next() {
    let api_port = free_port();
    let firm = Firm::new();
    let pebble = Pebble::start(firm.folder.path(), api_port).await;
    let firm = firm
        .with("CHANCERY_API__LISTEN", &format!("127.0.0.1:{api_port}"))
        .with("CHANCERY_TLS__ACME__DOMAINS", &DOMAINS.join(","))
        .with("CHANCERY_TLS__ACME__CONTACT", "ops@example.com")
        .with("CHANCERY_TLS__ACME__DIRECTORY", &pebble.directory)
        .with("SSL_CERT_FILE", pebble.root.to_str().unwrap());
    let mut server = firm.start();
    eventually("the certificate is there", ENOUGH_TIME, async || {
        assert!(!server.log().contains("certificate not obtained"), "{}", server.log());
        readiness(&server).await.status == 200
    })
    .await;
    server.wait_for_log("certificate obtained");
    let obtained = served_certificate(&server).await;
    let (_, parsed) = X509Certificate::from_der(&obtained).unwrap();
    assert!(parsed.issuer().to_string().contains("Pebble"), "{}", parsed.issuer());
    let names = parsed.subject_alternative_name().unwrap().unwrap();
    let names: Vec<String> = names.value.general_names.iter().map(ToString::to_string).collect();
    assert!(DOMAINS.iter().all(|domain| names.iter().any(|name| name.contains(domain))), "{names:?}");

    server.end();
    drop(pebble);
    let server = firm.start();
    assert_eq!(readiness(&server).await.status, 200, "nothing is needed of the authority");
    assert_eq!(served_certificate(&server).await, obtained);
}

#[tokio::test]
async fn server_without_a_certificate_yet_is_not_ready() {
    let certificate = TestCertificate::local();
    let firm = Firm::new();
    certificate.write(firm.folder.path());
    let firm = firm
        .with("CHANCERY_TLS__ACME__DOMAINS", "api.example.com")
        .with("CHANCERY_TLS__ACME__DIRECTORY", "https://127.0.0.1:9/dir")
        .with("SSL_CERT_FILE", super::CERTIFICATE_FILE);
    let server = firm.start();
    eventually("the failure is logged", ENOUGH_TIME, async || {
        server.log().contains("certificate not obtained, retrying")
    })
    .await;
    let reply = readiness(&server).await;
    assert_eq!((reply.status, &reply.body["reason"]), (503, &json!("waiting for a certificate")));
    assert!(client().get(super::https(&server.api)).send().await.is_err());
}
