//! All three nodes restart one after another, behind HAProxy and under load: programs with whole replies and streams,
//! people on portal pages, people who sign in. No request fails.

use super::balancer::{Balancer, Ports};
use super::cluster::{Cluster, Parts, Plan};
use crate::faults::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target};
use crate::faults::ledger::{assert_verified, deliver, rows, undelivered};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::office::{SignedInUser, sign_in};
use crate::server::eventually;
use crate::test_backends::PostgresAndRedis;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// HAProxy notices after 1.25 seconds; the rest is headroom for a busy machine.
const DRAIN_WAIT_S: &str = "4";

/// No client is rejected or cut off.
const BEHAVIOR: ClientBehavior =
    ClientBehavior { clients: 6, pause_ms: 0..=50, allowed_errors: &[], with_keys: false, may_be_cut: false };

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rolling_restart_fails_no_request() {
    rounds("three nodes: rolling restart", async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let (shared, ports) = (PostgresAndRedis::start("rolling_restart"), Ports::choose());
    let portal = format!("http://localhost:{}", ports.portal);
    let issuer = format!("http://127.0.0.1:{}", ports.auth);
    let settings = [
        ("CHANCERY_PORTAL__PUBLIC_URL", portal.as_str()),
        ("CHANCERY_PORTAL__TRUSTED_PROXIES", "127.0.0.1"),
        ("CHANCERY_IDENTITY__ISSUER", &issuer),
        ("CHANCERY_AUTH__ENABLED", "true"),
        ("CHANCERY_OPS__DRAIN_WAIT_S", DRAIN_WAIT_S),
    ];
    let (database_url, redis_url) = (&shared.database.url(), &shared.redis.url());
    let plan = Plan { database_url, redis_url, generation: 1, settings: &settings, parts: Parts::All };
    let mut cluster = tokio::task::block_in_place(|| Cluster::start(&plan));
    let balancer = Balancer::start(&ports, &cluster.nodes).await;
    let key = cluster.firm().account_with_key("Hale & Ward");
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let target = Target { apis: vec![balancer.api.clone()], key, prompts };
    let clients = Clients::start(&target, &BEHAVIOR, &draw);
    let is_over = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(read_on(sign_in(cluster.firm(), &portal, "maya").await, Arc::clone(&is_over)));

    for number in 0..cluster.nodes.len() {
        clients.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
        cluster.nodes[number].server.signal(Signal::TERM);
        let leaving = &cluster.nodes[number];
        eventually("it says that it leaves", Duration::from_secs(3), async || {
            leaving.readiness().await.status == 503
        })
        .await;
        // A person signs in at this very moment.
        sign_in(cluster.firm(), &portal, "omar").await;
        counts.add("people who signed in", 1);
        let node = &mut cluster.nodes[number];
        let code = tokio::task::block_in_place(|| node.server.wait());
        assert_eq!(code, Some(0), "{}", node.server.log());
        tokio::task::block_in_place(|| node.start_again());
        counts.add("restarts", 1);
        eventually("the balancer uses it again", REPLIES_WITHIN, async || {
            let requests = node.server.logged_requests();
            requests.iter().any(|line| line["path"] == "/v1/generate")
        })
        .await;
    }
    let record = clients.stop().await;
    is_over.store(true, Ordering::SeqCst);
    counts.add("pages, none failed", reading.await.unwrap());
    cluster.end();
    assert!(record.rejections.is_empty() && record.unanswered.is_empty());
    counts.add("replies compared, none failed", record.replies.len());
    deliver(&mut delivered, &record.replies);
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
    assert!(left.is_empty(), "nobody has these: {left:?}");
}

/// Opens the client list repeatedly; each request must succeed. Returns the number of requests.
async fn read_on(person: SignedInUser, is_over: Arc<AtomicBool>) -> usize {
    let mut pages = 0;
    while !is_over.load(Ordering::SeqCst) {
        let page = person.page("/clients").await;
        assert_eq!(page.status.as_u16(), 200, "{}", page.body);
        pages += 1;
        // At most 600 in a minute, half of what a person may request.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    pages
}
