//! A server as a child process: what it prints is kept for error messages, and it is stopped when dropped.

use crate::{Outcome, cpu};
use chancery_domain::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

/// LiteLLM imports for minutes on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(300);
const START_POLL: Duration = Duration::from_millis(50);
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LOG_BYTES: usize = 2_000;

/// Runs a benchmark until it ends or a signal comes. Either way its servers are dropped, which stops them.
pub async fn until_signal(benchmark: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        outcome = benchmark => outcome,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = terminate.recv() => Err("terminated".into()),
    }
}

#[derive(Debug)]
pub struct ServerProcess {
    name: String,
    child: Child,
    /// Data and log; removed with the server.
    folder: TempDir,
}

impl ServerProcess {
    /// Starts the command with its log in the folder. It leads a process group, so that its workers end with it.
    pub fn spawn(name: &str, mut command: Command, folder: TempDir) -> Outcome<Self> {
        let log = File::create(folder.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        Ok(Self { name: name.to_owned(), child, folder })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// CPU time of the process and its descendants.
    pub fn cpu_time(&self) -> Outcome<Duration> {
        cpu::of_process_tree(self.id())
            .ok_or_else(|| format!("{} has ended\n{}", self.name, self.end_of_log()).into())
    }

    /// Polls until the probe succeeds; fails if the process ends or takes too long.
    pub async fn wait_until_ready(&mut self, probe: impl AsyncFn() -> bool) -> Outcome<()> {
        let deadline = SystemClock.monotonic() + START_TIMEOUT;
        // A server may accept connections long before it answers.
        while !timeout(PROBE_TIMEOUT, probe()).await.unwrap_or(false) {
            if let Some(status) = self.child.try_wait()? {
                let log = self.end_of_log();
                return Err(format!("{} ended while starting: {status}\n{log}", self.name).into());
            }
            if SystemClock.monotonic() > deadline {
                return Err(format!("{} is not ready\n{}", self.name, self.end_of_log()).into());
            }
            sleep(START_POLL).await;
        }
        Ok(())
    }

    pub fn end_of_log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(MAX_LOG_BYTES)..]).into_owned()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Returns a loopback port that was free a moment ago.
pub fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
