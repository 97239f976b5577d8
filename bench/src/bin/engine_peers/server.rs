//! The compared servers as processes: started with the same slots, context and threads, polled until ready, stopped when dropped.

use crate::Outcome;
use crate::dialect::{Dialect, Reply};
use crate::workload::Prompt;
use chancery_bench::http;
use chancery_bench::processes::{ServerProcess, free_address};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Concurrent sequences, for every server.
pub const SLOTS: usize = 32;
/// Maximum prompt and reply together, for every server.
pub const CONTEXT_TOKENS: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    Chancery,
    Llama,
    Openvino,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chancery => "Chancery",
            Self::Llama => "llama-server",
            Self::Openvino => "OpenVINO GenAI",
        })
    }
}

/// Which instruction sets the servers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Isa {
    /// The best of the machine.
    Best,
    /// Nothing above AVX2.
    Avx2,
}

/// Paths of binaries and models.
#[derive(Clone, Debug)]
pub struct Parts {
    pub chancery: PathBuf,
    pub peers: PathBuf,
    pub openvino_server: PathBuf,
    pub model: PathBuf,
    /// The name of the model file, without its extension.
    pub model_name: String,
}

pub struct Server {
    pub side: Side,
    address: SocketAddr,
    dialect: Dialect,
    process: ServerProcess,
}

impl Server {
    pub async fn start(side: Side, isa: Isa, parts: &Parts, extra: &[String]) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address()?;
        let mut command = match side {
            Side::Chancery => chancery(isa, parts, address, folder.path())?,
            Side::Llama => llama(isa, parts, address)?,
            Side::Openvino => openvino(isa, parts, address)?,
        };
        command.args(extra);
        let mut process = ServerProcess::spawn(&side.to_string(), command, folder)?;
        process.wait_until_ready(async || is_ready(side, address).await).await?;
        let mut server = Self { side, address, dialect: Dialect::ChatCompletions, process };
        if side == Side::Chancery {
            server.dialect = own_dialect(server.process.folder())?;
            server.detect_streaming().await;
        }
        Ok(server)
    }

    pub async fn ask(&self, prompt: &Prompt, max_tokens: u32) -> Outcome<Reply> {
        let reply = self.dialect.ask(self.address, prompt, max_tokens).await;
        reply.map_err(|error| format!("{}: {error}\n{}", self.side, self.process.end_of_log()).into())
    }

    pub fn streams(&self) -> bool {
        self.dialect.streams()
    }

    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Returns the peak resident memory of the process.
    pub fn peak_memory_mb(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? / 1024)
    }

    async fn detect_streaming(&mut self) {
        let Dialect::Chancery { streams, .. } = &mut self.dialect else { return };
        *streams = true;
        let probe = Prompt { instructions: "Answer in one word.".to_owned(), input: "Is it day?".to_owned() };
        let accepted = self.dialect.ask(self.address, &probe, 2).await.is_ok();
        if let Dialect::Chancery { streams, .. } = &mut self.dialect {
            *streams = accepted;
        }
    }
}

/// Chancery answers 401 without a key, which is good enough: its listeners open after the model is loaded.
async fn is_ready(side: Side, address: SocketAddr) -> bool {
    let path = if side == Side::Chancery { "/v1/models" } else { "/health" };
    let response = http::get(address, path).await;
    response.is_ok_and(|response| response.status().is_success() || response.status() == 401)
}

fn threads() -> Outcome<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// Uses the demo firm, with durable metering as by default.
fn chancery(isa: Isa, parts: &Parts, address: SocketAddr, folder: &Path) -> Outcome<Command> {
    let config = folder.join("chancery.toml");
    let text = format!(
        "data = \"data\"\n[api]\nlisten = \"{address}\"\n[ops]\nlisten = \"{}\"\n\
         [[models]]\nname = \"{}\"\nengine = \"embedded\"\nfile = \"{}\"\ncontext_tokens = {CONTEXT_TOKENS}\nslots = {SLOTS}\n\
         input_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n",
        free_address()?,
        parts.model_name,
        parts.model.display(),
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(&parts.chancery);
    command.args(["serve", "--demo", "--only", "api", "--config"]).arg(config);
    if isa == Isa::Avx2 {
        command.env("CHANCERY_KERNEL", "avx2");
    }
    Ok(command)
}

/// Reads the demo firm's model and API key.
fn own_dialect(folder: &Path) -> Outcome<Dialect> {
    let demo: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("data/demo.json"))?)?;
    let field = |name: &str| demo[name].as_str().map(str::to_owned).ok_or(format!("demo.json has no {name}"));
    Ok(Dialect::Chancery { model: field("model")?, key: field("api_key")?, streams: false })
}

/// The best flags found; docs/benchmarks.md says what was tried.
fn llama(isa: Isa, parts: &Parts, address: SocketAddr) -> Outcome<Command> {
    let build = match isa {
        Isa::Best => "native",
        Isa::Avx2 => "avx2",
    };
    let threads = threads()?.to_string();
    let mut command = Command::new(parts.peers.join("llama").join(build).join("llama-server"));
    command.arg("--model").arg(&parts.model);
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--parallel", &SLOTS.to_string(), "--ctx-size", &(SLOTS * CONTEXT_TOKENS).to_string()]);
    command.args(["--threads", &threads, "--threads-batch", &threads]);
    command.args(["--flash-attn", "on", "--no-kv-unified", "--ubatch-size", "2048", "--cache-ram", "0"]);
    Ok(command)
}

fn openvino(isa: Isa, parts: &Parts, address: SocketAddr) -> Outcome<Command> {
    let mut command = Command::new(parts.peers.join("venv/bin/python"));
    command.arg(&parts.openvino_server).arg("--model").arg(&parts.model);
    command.args(["--port", &address.port().to_string(), "--slots", &SLOTS.to_string()]);
    command.args([
        "--kv-tokens",
        &(SLOTS * CONTEXT_TOKENS).to_string(),
        "--threads",
        &threads()?.to_string(),
    ]);
    if isa == Isa::Avx2 {
        // It has no switch for all of its kernels, so the result of CPUID is changed instead.
        command.env("LD_PRELOAD", parts.peers.join("avx2_only.so"));
    }
    Ok(command)
}
