//! Three nodes and everything behind them. Each has its own directory, as on its own machine; they share the database,
//! Redis, and the generation servers.

use crate::faults::client_requests::{Prompt, baseline_replies};
use crate::faults::ledger::Delivered;
use crate::server::{Firm, Reply, Server, client, eventually, model_file};
use crate::test_backends::PostgresAndRedis;
use crate::upstream::{UpstreamModel, firm_with, tokenizer_file};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub const NODES: usize = 3;

const API_ALONE: &[&str] = &["--only", "api"];

/// A node notices within seconds that a dependency is back; the rest is headroom for a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(40);

/// Settings that all nodes of a cluster share.
pub struct Plan<'a> {
    pub database_url: &'a str,
    pub redis_url: &'a str,
    /// Number of generation servers.
    pub generation: usize,
    pub settings: &'a [(&'a str, &'a str)],
    pub parts: Parts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    ApiAlone,
    /// Includes the portal and the identity provider, with the demo firm, which the first node creates.
    All,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub generation: Vec<Generation>,
    _tokenizer: tempfile::TempDir,
    _behind_generation: Option<PostgresAndRedis>,
}

pub struct Node {
    pub firm: Firm,
    pub server: Server,
    options: &'static [&'static str],
}

/// A server that runs the model. It knows the nodes only by their API key.
pub struct Generation {
    firm: Firm,
    pub server: Server,
}

impl Generation {
    /// Starts it again on the same port, after the old process has exited.
    pub fn start_again(&mut self) {
        self.server = self.firm.start_with(API_ALONE);
    }
}

impl Cluster {
    /// Three API-only nodes in front of one generation server.
    pub fn over(shared: &PostgresAndRedis) -> Self {
        let (database_url, redis_url) = (&shared.database.url(), &shared.redis.url());
        let parts = Parts::ApiAlone;
        Self::start(&Plan { database_url, redis_url, generation: 1, settings: &[], parts })
    }

    pub fn start(plan: &Plan<'_>) -> Self {
        // The nodes use one key for all servers of a model, so several generation servers share a database.
        let behind_generation = (plan.generation > 1).then(|| PostgresAndRedis::start("generation"));
        let firms: Vec<Firm> = (0..plan.generation)
            .map(|_| {
                let settings = behind_generation.iter().flat_map(PostgresAndRedis::settings);
                let firm = Firm::new().with("CHANCERY_API__LISTEN", &format!("127.0.0.1:{}", free_port()));
                settings.fold(firm, |firm, (name, value)| firm.with(name, &value))
            })
            .collect();
        let api_key = firms[0].account_with_key("The nodes in front");
        let generation = firms
            .into_iter()
            .map(|firm| Generation { server: firm.start_with(API_ALONE), firm })
            .collect::<Vec<_>>();
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer_file::write(&model_file(), folder.path());
        let endpoints: Vec<String> = generation.iter().map(|one| format!("{}/v1", one.server.api)).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let api_key = Some(api_key.as_str());
        let model = UpstreamModel { endpoints: &endpoints, api_key, tokenizer: Some(&tokenizer), more: "" };
        let nodes = (0..NODES).map(|number| Node::start(plan, &model, number == 0)).collect();
        Self { nodes, generation, _tokenizer: folder, _behind_generation: behind_generation }
    }

    /// The first node's firm; the commands of every node use the same database.
    pub fn firm(&self) -> &Firm {
        &self.nodes[0].firm
    }

    pub fn apis(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.api.clone()).collect()
    }

    /// Sends every request once without faults.
    pub async fn baseline_replies(&self, key: &str) -> (Arc<[Prompt]>, Delivered) {
        let (prompts, received) = baseline_replies(&self.nodes[0].server, key).await;
        (prompts, received.into_iter().collect())
    }

    /// Waits until every node is ready.
    pub async fn until_ready(&self) {
        for node in &self.nodes {
            node.until_ready().await;
        }
    }

    pub fn end(&mut self) {
        // Signal all of them first, because each may wait before it exits.
        for node in &self.nodes {
            node.server.signal(rustix::process::Signal::TERM);
        }
        for node in &mut self.nodes {
            assert_eq!(node.server.wait(), Some(0), "{}", node.server.log());
        }
    }
}

impl Node {
    fn start(plan: &Plan<'_>, model: &UpstreamModel<'_>, is_first: bool) -> Self {
        let mut firm = firm_with(model)
            .with("CHANCERY_DATABASE__URL", plan.database_url)
            .with("CHANCERY_LIMITS__STORE", plan.redis_url);
        // Fixed ports, so that a restarted node gets its old ones back.
        for part in ["API", "PORTAL", "AUTH", "OPS"] {
            firm = firm.with(&format!("CHANCERY_{part}__LISTEN"), &format!("127.0.0.1:{}", free_port()));
        }
        let firm = plan.settings.iter().fold(firm, |firm, (name, value)| firm.with(name, value));
        let options: &[&str] = match plan.parts {
            Parts::ApiAlone => API_ALONE,
            Parts::All if is_first => &["--demo", "--minimal"],
            Parts::All => &[],
        };
        let server = firm.start_with(options);
        Self { firm, server, options }
    }

    /// Starts it again on the same ports, after the old process has exited.
    pub fn start_again(&mut self) {
        self.server = self.firm.start_with(self.options);
    }

    pub async fn readiness(&self) -> Reply {
        Reply::read(client().get(format!("{}/readyz", self.server.ops)).send().await.unwrap()).await
    }

    pub async fn until_ready(&self) {
        eventually("the node is ready", READY_WITHIN, async || self.readiness().await.status == 200).await;
    }
}

/// Returns a free port below the ephemeral range, so that no other process takes it while its owner is down.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Concurrent tests are separate processes and start at different ports.
    let begin = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
