//! A data directory that a test can fill to the last byte. If the machine allows user mounts, it is an 8 MB in-memory file
//! system that only the test's processes see. Otherwise the operating system keeps the server from growing its files.

use super::ledger;
use super::rounds::Draw;
use crate::server::{Firm, Running, Server};
use chancery_domain::UsageRow;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub struct SmallDisk {
    pub firm: Firm,
    /// Keeps the mount alive for the duration of the test.
    holder: Option<Running>,
}

impl SmallDisk {
    /// For a firm without data.
    pub fn of(mut firm: Firm) -> Self {
        std::fs::create_dir(firm.data()).unwrap();
        let holder = mount(&firm);
        if let Some(Running(holder)) = &holder {
            let (pid, folder) = (holder.id().to_string(), firm.folder.path().to_str().unwrap().to_owned());
            let enter = ["nsenter", "-t", &pid, "-U", "-m", "--preserve-credentials", "--"];
            // Change to the directory again: an inherited working directory does not show the mount.
            let here = ["sh", "-c", "cd \"$0\" && exec \"$@\"", &folder];
            firm.run_by(&[&enter[..], &here[..]].concat());
        }
        println!("the disk is {}", if holder.is_some() { "mounted" } else { "a limit on the size of files" });
        Self { firm, holder }
    }

    pub fn start(&self) -> Server {
        match self.holder {
            Some(_) => self.firm.start(),
            // Otherwise the first byte past the limit would kill the process.
            None => self.firm.start_limited("trap '' XFSZ"),
        }
    }

    /// Leaves no space, or only enough for a few rows.
    pub fn fill(&self, server: &Server, draw: &Draw) {
        let spare_bytes = draw.number(0..=8) * 4_096;
        match &self.holder {
            Some(_) => {
                let mut ballast = std::fs::File::create(self.ballast()).unwrap();
                while ballast.write_all(&[0; 4_096]).is_ok() {}
                let length = ballast.metadata().unwrap().len();
                ballast.set_len(length.saturating_sub(spare_bytes)).unwrap();
            }
            None => {
                let log = std::fs::metadata(self.firm.data().join("chancery.db-wal"));
                limit_files(server, Some(log.map_or(0, |log| log.len()) + spare_bytes));
            }
        }
    }

    pub fn make_room(&self, server: &Server) {
        match &self.holder {
            Some(_) => std::fs::remove_file(self.ballast()).unwrap(),
            None => limit_files(server, None),
        }
    }

    /// Call this after the server has exited: a database in another mount namespace cannot be opened from here.
    pub async fn rows(&self) -> BTreeMap<String, UsageRow> {
        let copy = self.firm.folder.path().join("copy.db");
        std::fs::copy(self.seen_from_here().join("chancery.db"), &copy).unwrap();
        ledger::rows(&format!("sqlite:{}", copy.display())).await
    }

    fn seen_from_here(&self) -> PathBuf {
        match &self.holder {
            Some(Running(holder)) => {
                let inside = self.firm.data();
                PathBuf::from(format!("/proc/{}/root", holder.id())).join(inside.strip_prefix("/").unwrap())
            }
            None => self.firm.data(),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.seen_from_here().join("ballast")
    }
}

/// Returns `None` if the machine does not let this user mount anything.
fn mount(firm: &Firm) -> Option<Running> {
    // The write-ahead log restarts at 4 MB; on a smaller disk it would fill the disk by itself.
    let script = "mount -t tmpfs -o size=8m tmpfs \"$0\" && echo mounted && exec sleep infinity";
    let data = firm.data();
    let mut command = Command::new("unshare");
    command.args(["-r", "-m", "sh", "-c", script]).arg(data);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut holder = Running(command.spawn().ok()?);
    let mut line = String::new();
    BufReader::new(holder.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (line == "mounted\n").then_some(holder)
}

fn limit_files(server: &Server, length: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
    prlimit(pid, Resource::Fsize, Rlimit { current: length, maximum: None }).unwrap();
}
