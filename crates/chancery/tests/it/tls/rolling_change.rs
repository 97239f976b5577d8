//! A new certificate is for new connections, and disturbs none that is open.

use super::{TestCertificate, client_trusting, https, secured};
use crate::event_stream::EventStream;
use crate::server::{Firm, eventually, request};
use rustix::process::Signal;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Far longer than changed files need to be noticed.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);
const CALLERS: usize = 6;

/// Returns whether a new connection gets this certificate.
async fn is_served(url: &str, certificate: &TestCertificate) -> bool {
    let client = client_trusting(&[certificate]).build().unwrap();
    client.get(format!("{url}/v1/models")).send().await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_change_under_load_without_a_failed_request() {
    let certificates = [(); 3].map(|()| TestCertificate::local());
    let [first, second, third] = &certificates;
    let firm = secured(Firm::new(), first);
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let api = https(&server.api);
    let url = format!("{api}/v1/generate");
    let is_over = CancellationToken::new();
    let mut load = JoinSet::new();
    for number in 0..CALLERS {
        let builder = client_trusting(&[first, second, third]);
        // Half of the callers connect for every request, the others keep their connection.
        let builder = if number % 2 == 0 { builder.pool_max_idle_per_host(0) } else { builder };
        let call = builder.build().unwrap().post(&url).bearer_auth(&key).json(&request("", "Say hello.", 1));
        let is_over = is_over.clone();
        load.spawn(async move {
            let mut served = 0;
            while !is_over.is_cancelled() {
                let reply = call.try_clone().unwrap().send().await.unwrap();
                let (status, text) = (reply.status(), reply.text().await.unwrap());
                assert_eq!(status, 200, "{text}");
                served += 1_u64;
            }
            served
        });
    }
    let client = client_trusting(&[first, second, third]).build().unwrap();
    let mut body = request("Translate to French.", "", 400);
    body["stream"] = true.into();
    let mut stream = EventStream::send(client.post(&url).bearer_auth(&key).json(&body)).await;
    stream.first_text().await;

    second.write(firm.folder.path());
    eventually("changed files are served", NOTICED_WITHIN, async || is_served(&api, second).await).await;
    assert!(!is_served(&api, first).await);
    third.write(firm.folder.path());
    server.signal(Signal::HUP);
    eventually("SIGHUP is obeyed", NOTICED_WITHIN, async || is_served(&api, third).await).await;
    eventually("it is logged", NOTICED_WITHIN, async || server.log().contains("certificates reloaded")).await;

    is_over.cancel();
    let mut total = 0;
    while let Some(served) = load.join_next().await {
        let served = served.unwrap();
        assert!(served > 0);
        total += served;
    }
    let events = stream.rest().await;
    assert_eq!(events.last().unwrap().name, "response.incomplete", "it ended at its cap");
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], total + 1);
}

#[tokio::test]
async fn unusable_certificate_leaves_the_current_one_in_place() {
    let [first, second] = [(); 2].map(|()| TestCertificate::local());
    let firm = secured(Firm::new(), &first);
    let server = firm.start();
    let api = https(&server.api);
    std::fs::write(firm.folder.path().join(super::CERTIFICATE_FILE), &second.certificate_pem).unwrap();
    server.signal(Signal::HUP);
    eventually("it is reported", NOTICED_WITHIN, async || {
        server.log().contains("certificates not reloaded, keeping the current ones")
    })
    .await;
    eventually("it is reported without a signal too", NOTICED_WITHIN, async || {
        server.log().contains("changed certificate cannot be used, keeping the current one")
    })
    .await;
    assert!(is_served(&api, &first).await && !is_served(&api, &second).await);
}
