//! A PostgreSQL server that one test can restart, or replace by its standby. The one that `make test` starts is shared.

use super::cluster::free_port;
use chancery_test_support::query;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub struct PostgresServer {
    folder: PathBuf,
    port: u16,
}

/// Debian installs server programs apart from client programs.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().map(|entry| entry.unwrap().path().join("bin"));
    let newest = versions.filter(|folder| folder.join("initdb").exists()).max();
    newest.expect("PostgreSQL is installed by `make test`")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// PostgreSQL does not run as root.
fn as_owner(program: &Path, folder: &Path) -> Command {
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn must(output: std::io::Result<Output>, folder: &Path) {
    let output = output.unwrap();
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    assert!(output.status.success(), "{}\n{log}", String::from_utf8_lossy(&output.stderr));
}

impl PostgresServer {
    fn new() -> Self {
        // Outside directories that only the user running the tests can enter.
        let folder = tempfile::Builder::new().prefix("chancery-postgres.").tempdir_in("/tmp").unwrap().keep();
        if is_root() {
            must(Command::new("chown").arg("postgres").arg(&folder).output(), &folder);
        }
        Self { folder, port: free_port() }
    }

    pub fn start() -> Self {
        let server = Self::new();
        let data = server.folder.join("data");
        let mut initdb = as_owner(&programs().join("initdb"), &server.folder);
        initdb.arg("-D").arg(data).args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        must(initdb.output(), &server.folder);
        server.start_process();
        server
    }

    /// A copy that follows this server. From now on, each commit here waits until it is applied there.
    pub fn standby(&self) -> Self {
        let standby = Self::new();
        let mut copy = as_owner(&programs().join("pg_basebackup"), &standby.folder);
        copy.args(["--checkpoint=fast", "--no-sync", "-R", "-d", &self.url(), "-D"]);
        must(copy.arg(standby.folder.join("data")).output(), &standby.folder);
        standby.start_process();
        // Not in the copy, which would wait for a standby of its own.
        for setting in ["synchronous_standby_names = '*'", "synchronous_commit = remote_apply"] {
            query(&self.url(), &format!("ALTER SYSTEM SET {setting}")).unwrap();
        }
        query(&self.url(), "SELECT pg_reload_conf()").unwrap();
        standby
    }

    /// This server stops as in a crash, and the standby takes over.
    pub fn fail_over_to(&self, standby: &Self) {
        self.control(&["-m", "immediate", "stop"]);
        standby.control(&["promote"]);
    }

    fn start_process(&self) {
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200",
            self.port
        );
        self.control(&["-o", &options, "start"]);
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// `fast` ends every session and shuts the database down cleanly. `immediate` stops at once, and the next start
    /// recovers from the log as after a crash.
    pub fn restart(&self, how: &str) {
        self.control(&["-m", how, "restart"]);
    }

    fn control(&self, arguments: &[&str]) {
        let mut command = as_owner(&programs().join("pg_ctl"), &self.folder);
        command.arg("-D").arg(self.folder.join("data")).arg("-l").arg(self.folder.join("log"));
        // Its output would stay open in the server.
        command.args(["-s", "-w", "-t", "60"]).args(arguments).stdout(Stdio::null());
        must(command.stderr(Stdio::null()).output(), &self.folder);
    }

    /// Returns how many nodes have the serving lock for shared limits.
    pub fn serving_nodes(&self) -> usize {
        let (class, object) = (u32::from_be_bytes(*b"chan"), u32::from_be_bytes(*b"serv"));
        let count = format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ShareLock' \
             AND classid = {class} AND objid = {object}"
        );
        query(&self.url(), &count).map_or(0, |count| count.parse().unwrap())
    }
}

/// Stops the server when its test ends.
impl Drop for PostgresServer {
    fn drop(&mut self) {
        let mut command = as_owner(&programs().join("pg_ctl"), &self.folder);
        command.arg("-D").arg(self.folder.join("data")).args(["-s", "-m", "immediate", "stop"]);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
