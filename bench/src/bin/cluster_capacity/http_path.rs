//! Measures what a request costs a node, from socket to reply, with PostgreSQL, Redis and an upstream engine that answers at
//! once.

use crate::Options;
use crate::limits::Redis;
use crate::postgres::{Postgres, taken_since};
use chancery_bench::accounts::unlimited_keys;
use chancery_bench::instant_upstream as upstream;
use chancery_bench::keep_alive::{Connection, JsonPost};
use chancery_bench::portal::Server;
use chancery_bench::watch::{Latencies, Watch, crowd, us_each};
use chancery_store::Store;
use chancery_test_support::PostgresDatabase;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

const ACCOUNTS: usize = 64;
const WARM_UP: Duration = Duration::from_secs(2);
const GENERATE: &str = r#"{"model":"instant","instructions":"You write letters for a firm of consultants. Be brief and polite.","input":"Thank the client for the meeting on 3 March and confirm the invoice.","max_output_tokens":64}"#;
const CHAT: &str =
    r#"{"model":"instant","messages":[{"role":"user","content":"Thank the client."}],"stream":true}"#;

pub async fn measure(options: &Options) {
    let bench_database = PostgresDatabase::create_at(&options.postgres, "bench");
    let url = bench_database.url();
    let store = Arc::new(Store::open(&url.parse().unwrap()).await.unwrap());
    let keys = unlimited_keys(&store, ACCOUNTS).await;
    let engine = upstream::start().await;
    let config = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(config.path(), file(options, &url, engine)).unwrap();
    let mut database = Postgres::connect(&url).await;
    let mut redis = Redis::connect(&options.redis).await;
    println!(
        "\n## A node over HTTP, replies of {} tokens from an upstream that answers at once\n\n\
         | Nodes | Connections | requests/s | median µs | 99 % µs | node CPU µs | PostgreSQL CPU µs | Redis CPU µs | load and upstream CPU µs | \
         others' share of the machine |\n|---|---|---|---|---|---|---|---|---|---|",
        upstream::TOKENS
    );
    for connections in &options.connections {
        let target = Target { address: engine, path: "/v1/chat/completions", body: CHAT };
        let callers = callers(&[target], &[String::new()], *connections).await;
        ask(&callers, WARM_UP).await;
        let watch = Watch::start();
        let done = ask(&callers, options.measured()).await;
        let watched = watch.stop();
        println!(
            "| none: the upstream alone | {connections} | {:.0} | {} | {} | | | | {:.1} | {:.0} % |",
            done.per_second(watched.elapsed),
            done.us(50),
            done.us(99),
            us_each(watched.own, done.count()),
            watched.others_percent(Duration::ZERO)
        );
    }
    for nodes in &options.nodes {
        let mut servers = Vec::new();
        for _ in 0..*nodes {
            servers.push(start(&options.chancery, config.path()).await);
        }
        let targets: Vec<Target> = servers
            .iter()
            .map(|server| Target { address: server.address(), path: "/v1/generate", body: GENERATE })
            .collect();
        for connections in &options.connections {
            let callers = callers(&targets, &keys, *connections).await;
            ask(&callers, WARM_UP).await;
            let of_nodes = |servers: &[Server]| servers.iter().map(Server::cpu_time).sum::<Duration>();
            let before = (of_nodes(&servers), database.processes().await, redis.counted().await);
            let watch = Watch::start();
            let done = ask(&callers, options.measured()).await;
            let watched = watch.stop();
            let node = of_nodes(&servers) - before.0;
            let postgres = taken_since(&before.1, &database.processes().await);
            let limits = redis.counted().await.cpu - before.2.cpu;
            println!(
                "| {nodes} | {connections} | {:.0} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} % |",
                done.per_second(watched.elapsed),
                done.us(50),
                done.us(99),
                us_each(node, done.count()),
                us_each(postgres, done.count()),
                us_each(limits, done.count()),
                us_each(watched.own, done.count()),
                watched.others_percent(node + postgres + limits),
            );
        }
    }
    store.close().await;
    drop(database);
}

fn file(options: &Options, database_url: &str, engine: SocketAddr) -> String {
    let tokenizer = options
        .tokenizer
        .as_ref()
        .map_or_else(String::new, |path| format!("tokenizer = {:?}\n", path.canonicalize().unwrap()));
    format!(
        "[database]\nurl = \"{database_url}\"\n[limits]\nstore = \"{}\"\n[[models]]\nname = \"instant\"\nengine = \"upstream\"\n\
         endpoints = [\"http://{engine}/v1\"]\n{tokenizer}input_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n",
        options.redis
    )
}

async fn start(binary: &Path, config: &Path) -> Server {
    let mut command = Command::new(binary.canonicalize().unwrap());
    command.args(["serve", "--only", "api", "--config"]).arg(config).args(["--data", "data"]);
    Server::start(command, "CHANCERY_API__LISTEN").await
}

#[derive(Clone, Copy)]
struct Target {
    address: SocketAddr,
    path: &'static str,
    body: &'static str,
}

/// One connection that is reused, and its request.
struct Caller {
    connection: Connection,
    request: JsonPost,
}

type Callers = Arc<[Mutex<Caller>]>;

async fn callers(targets: &[Target], keys: &[String], count: usize) -> Callers {
    let mut callers = Vec::new();
    for number in 0..count {
        let target = targets[number % targets.len()];
        let key = &keys[number / targets.len() % keys.len()];
        let request = JsonPost::new(target.address, target.path, target.body).unwrap();
        let connection = Connection::open(target.address).await.unwrap();
        callers.push(Mutex::new(Caller { connection, request: request.with_bearer(key).unwrap() }));
    }
    callers.into()
}

async fn ask(callers: &Callers, measured: Duration) -> Latencies {
    let callers = Arc::clone(callers);
    crowd(callers.len(), measured, move |number| {
        let callers = Arc::clone(&callers);
        async move { callers[number].lock().await.ask().await }
    })
    .await
}

impl Caller {
    async fn ask(&mut self) {
        let answer = self.connection.send(&self.request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    }
}
