//! The compared gateways as processes, each in front of the same upstream.

use crate::load::{Target, is_complete};
use crate::side::{Mode, Side};
use chancery_bench::Outcome;
use chancery_bench::accounts::unlimited_keys;
use chancery_bench::chancery_gateway::Gateway;
use chancery_bench::instant_upstream::MODEL;
use chancery_bench::keep_alive::{Connection, JsonPost};
use chancery_bench::machine::first_line;
use chancery_bench::processes::{ServerProcess, free_address};
use chancery_domain::{ApiKey, OsRandomness};
use chancery_store::Store;
use chancery_test_support::{PostgresDatabase, query};
use hyper::header::HeaderName;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Programs that the cluster uses and that the benchmark does not start.
pub const DATABASES: &[&str] = &["postgres", "redis-server"];

const PATH: &str = "/v1/chat/completions";
/// Portkey listens on every interface, and has no option for another address. As a gateway it forwards to any host that a
/// request names, so no other program may reach it.
const LISTEN_ON_LOOPBACK: &str = r#"
const { Server } = require("node:net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (port, ...rest) {
  const callback = rest.find((value) => typeof value === "function");
  return typeof port === "number" ? listen.call(this, { port, host: "127.0.0.1" }, callback) : listen.call(this, port, ...rest);
};
"#;
/// Keys, and so accounts, that Chancery's connections use in turn.
const ACCOUNTS: usize = 64;
const MESSAGES: &str = r#"[{"role":"system","content":"You write letters for a firm of consultants. Be brief and polite."},{"role":"user","content":"Thank the client for the meeting on 3 March and confirm the invoice."}]"#;

/// Paths and addresses that the servers need.
#[derive(Clone, Debug)]
pub struct Parts {
    pub chancery: PathBuf,
    pub peers: Option<PathBuf>,
    pub postgres: Option<String>,
    pub redis: Option<String>,
    pub upstream: SocketAddr,
}

impl Parts {
    fn peer(&self, path: &str) -> Outcome<PathBuf> {
        let folder = self.peers.as_ref().ok_or("the other gateways need --peers-folder")?;
        Ok(folder.join(path))
    }

    fn nginx(&self) -> Outcome<PathBuf> {
        self.peer("nginx/usr/sbin/nginx")
    }

    /// The versions of everything but Chancery.
    pub fn versions(&self) -> Outcome<Vec<String>> {
        let mut versions = Vec::new();
        if self.peers.is_some() {
            versions.push(std::fs::read_to_string(self.peer("made-of")?)?.trim().to_owned());
            let nginx = first_line(&self.nginx()?.display().to_string(), &["-v"])?;
            versions.push(nginx.rsplit(": ").next().unwrap_or_default().to_owned());
            versions.push(format!("Node.js {}", first_line("node", &["--version"])?));
        }
        if let Some(url) = &self.postgres {
            let (version, fsync) = (query(url, "SHOW server_version")?, query(url, "SHOW fsync")?);
            versions.push(format!("PostgreSQL {} with fsync {}", version.trim(), fsync.trim()));
        }
        Ok(versions)
    }
}

/// The instant upstream: this program again, so that its CPU time is counted apart.
pub struct Upstream {
    process: ServerProcess,
    address: SocketAddr,
}

impl Upstream {
    pub async fn start() -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["upstream", &address.to_string()]);
        let mut process = ServerProcess::spawn("the upstream", command, tempfile::tempdir()?)?;
        process.wait_until_ready(async || Connection::open(address).await.is_ok()).await?;
        Ok(Self { process, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn process(&self) -> u32 {
        self.process.id()
    }

    pub fn cpu_time(&self) -> Outcome<Duration> {
        self.process.cpu_time()
    }
}

pub struct Server {
    side: Side,
    /// `None` without a gateway.
    process: Option<ServerProcess>,
    whole: Target,
    streamed: Target,
    /// Dropped with the server.
    _database: Option<PostgresDatabase>,
}

/// A command and what its requests need.
struct Start {
    command: Command,
    keys: Vec<String>,
    headers: Vec<(HeaderName, String)>,
    database: Option<PostgresDatabase>,
}

impl Start {
    /// For servers that check no keys. They get one all the same.
    fn without_keys(command: Command) -> Self {
        Self { command, keys: vec!["unused".to_owned()], headers: Vec::new(), database: None }
    }
}

impl Server {
    pub async fn start(side: Side, parts: &Parts) -> Outcome<Self> {
        if side == Side::Direct {
            let keys = ["unused".to_owned()];
            let [whole, streamed] = targets(parts.upstream, &keys, &[])?;
            return Ok(Self { side, process: None, whole, streamed, _database: None });
        }
        let (folder, address) = (tempfile::tempdir()?, free_address()?);
        let start = match side {
            Side::Direct | Side::Chancery => chancery(parts, address, folder.path()).await?,
            Side::Cluster => cluster(parts, address, folder.path()).await?,
            Side::Smg => smg(parts, address)?,
            Side::Litellm => litellm(parts, address, folder.path())?,
            Side::Portkey => portkey(parts, address, folder.path())?,
            Side::Nginx => nginx(parts, address, folder.path())?,
        };
        let [whole, streamed] = targets(address, &start.keys, &start.headers)?;
        let mut process = ServerProcess::spawn(&side.to_string(), start.command, folder)?;
        process.wait_until_ready(async || answers(&whole).await).await?;
        Ok(Self { side, process: Some(process), whole, streamed, _database: start.database })
    }

    pub fn side(&self) -> Side {
        self.side
    }

    pub fn target(&self, mode: Mode) -> &Target {
        match mode {
            Mode::Whole => &self.whole,
            Mode::Streamed => &self.streamed,
        }
    }

    pub fn process(&self) -> Option<u32> {
        self.process.as_ref().map(ServerProcess::id)
    }

    /// CPU time of the gateway's processes; zero without a gateway.
    pub fn cpu_time(&self) -> Outcome<Duration> {
        self.process.as_ref().map_or(Ok(Duration::ZERO), ServerProcess::cpu_time)
    }
}

/// Whether a request passes through to the upstream.
async fn answers(target: &Target) -> bool {
    let Ok(mut connection) = Connection::open(target.address).await else { return false };
    let answer = connection.send(&target.requests[0]).await;
    answer.is_ok_and(|answer| is_complete(&answer, Mode::Whole))
}

fn targets(address: SocketAddr, keys: &[String], headers: &[(HeaderName, String)]) -> Outcome<[Target; 2]> {
    let target = |more: &str| -> Outcome<Target> {
        let body = format!(r#"{{"model":"{MODEL}","messages":{MESSAGES},"max_tokens":64{more}}}"#);
        let mut requests = Vec::new();
        for key in keys {
            let mut request = JsonPost::new(address, PATH, body.clone())?.with_bearer(key)?;
            for (name, value) in headers {
                request = request.with_header(name.clone(), value)?;
            }
            requests.push(request);
        }
        Ok(Target { address, requests })
    };
    Ok([target("")?, target(r#","stream":true"#)?])
}

/// Creates the keys first: the server then opens a database that no other program has open.
async fn chancery(parts: &Parts, address: SocketAddr, folder: &Path) -> Outcome<Start> {
    let database_url = format!("sqlite:{}", folder.join("bench.db").display());
    own(parts, address, folder, &database_url, None).await
}

async fn cluster(parts: &Parts, address: SocketAddr, folder: &Path) -> Outcome<Start> {
    let admin_url = parts.postgres.as_ref().ok_or("the cluster needs --postgres")?;
    let database = PostgresDatabase::create_at(admin_url, "bench");
    let start = own(parts, address, folder, &database.url(), parts.redis.as_deref()).await?;
    Ok(Start { database: Some(database), ..start })
}

async fn own(
    parts: &Parts,
    address: SocketAddr,
    folder: &Path,
    database_url: &str,
    redis: Option<&str>,
) -> Outcome<Start> {
    let store = Store::open(&database_url.parse()?).await?;
    let keys = unlimited_keys(&store, ACCOUNTS).await;
    store.close().await;
    let binary = parts.chancery.canonicalize()?;
    let upstream = format!("http://{}/v1", parts.upstream);
    let gateway =
        Gateway { binary: &binary, address, database_url, redis, model: MODEL, upstream: &upstream };
    let command = gateway.command(folder)?;
    Ok(Start { command, keys, headers: Vec::new(), database: None })
}

fn smg(parts: &Parts, address: SocketAddr) -> Outcome<Start> {
    let mut command = Command::new(parts.peer("python/bin/smg")?);
    command.args(["launch", "--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--worker-urls", &format!("http://{}", parts.upstream), "--policy", "round_robin"]);
    command.args([
        "--prometheus-host",
        "127.0.0.1",
        "--prometheus-port",
        &free_address()?.port().to_string(),
    ]);
    // A log line for every request would slow it down.
    command.args(["--log-level", "warn"]);
    Ok(Start::without_keys(command))
}

fn litellm(parts: &Parts, address: SocketAddr, folder: &Path) -> Outcome<Start> {
    let config = folder.join("litellm.yaml");
    let text = format!(
        "model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n      \
         api_base: http://{}/v1\n      api_key: unused\n",
        parts.upstream
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(parts.peer("python/bin/litellm")?);
    command.arg("--config").arg(config).args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    // Its documentation recommends a worker for each core. Its default server kills workers that take 5 s to start.
    command.args(["--run_gunicorn", "--num_workers", &std::thread::available_parallelism()?.to_string()]);
    // It would fetch a list of prices from the network.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_LOG", "ERROR");
    // It does not start without a key that is hard to guess.
    let key = format!("sk-{}", ApiKey::generate(&OsRandomness).reveal());
    command.env("LITELLM_MASTER_KEY", &key);
    Ok(Start { keys: vec![key], ..Start::without_keys(command) })
}

fn portkey(parts: &Parts, address: SocketAddr, folder: &Path) -> Outcome<Start> {
    let preload = folder.join("listen_on_loopback.cjs");
    std::fs::write(&preload, LISTEN_ON_LOOPBACK)?;
    let mut command = Command::new("node");
    command.arg("--require").arg(preload);
    command.arg(parts.peer("portkey/node_modules/@portkey-ai/gateway/build/start-server.js")?);
    command.args([&format!("--port={}", address.port()), "--headless"]);
    let header = |name, value: String| (HeaderName::from_static(name), value);
    let headers = vec![
        header("x-portkey-provider", "openai".to_owned()),
        header("x-portkey-custom-host", format!("http://{}/v1", parts.upstream)),
    ];
    Ok(Start { headers, ..Start::without_keys(command) })
}

fn nginx(parts: &Parts, address: SocketAddr, folder: &Path) -> Outcome<Start> {
    let config = folder.join("nginx.conf");
    std::fs::write(&config, nginx_config(parts.upstream, address, folder))?;
    let mut command = Command::new(parts.nginx()?);
    command.arg("-p").arg(folder).arg("-c").arg(config).args(["-e", "stderr"]);
    Ok(Start::without_keys(command))
}

/// Streams pass through unbuffered; a request waits for nothing but the upstream.
fn nginx_config(upstream: SocketAddr, address: SocketAddr, folder: &Path) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("    {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "daemon off;\nworker_processes auto;\npid {folder}/nginx.pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n{temporary}    access_log off;\n    keepalive_requests 1000000000;\n    \
         upstream engine {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}\n    \
         server {{\n        listen {address};\n        location / {{\n            proxy_pass http://engine;\n            \
         proxy_http_version 1.1;\n            proxy_set_header Connection \"\";\n            proxy_buffering off;\n        \
         }}\n    }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_configuration_keeps_connections_open_on_both_sides() {
        let (upstream, address) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        let config = nginx_config(upstream, address, Path::new("/tmp/x"));
        for part in ["server 127.0.0.1:1; keepalive 256;", "listen 127.0.0.1:2;", "Connection \"\";"] {
            assert!(config.contains(part), "{part} is missing in {config}");
        }
        assert_eq!(config.matches('{').count(), config.matches('}').count());
    }

    #[test]
    fn only_streamed_requests_ask_for_a_stream() {
        let key = ["unused".to_owned()];
        let [whole, streamed] = targets("127.0.0.1:1".parse().unwrap(), &key, &[]).unwrap();
        let body = |target: &Target| format!("{:?}", target.requests[0]);
        assert!(!body(&whole).contains("stream") && body(&streamed).contains("stream"));
    }
}
