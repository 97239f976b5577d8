//! The part of `chancery verify` that compares the Merkle logs with signed checkpoints: those in the data directory, or a copy.

use crate::cli::Verify;
use crate::output::{counting_progress, outln};
use anyhow::{Context, bail};
use chancery_domain::{LogName, group_thousands};
use chancery_store::VerifyStore;
use chancery_transparency::{FiledCheckpoints, PUBLIC_KEY_FILE, load_verifier_keys};
use chancery_verify::{LogVerification, verify_log};
use std::path::{Path, PathBuf};

/// Notes in files that are reported one by one.
const MAX_REPORTED_PROBLEMS: usize = 50;

pub struct VerifiedLogs {
    pub logs: Vec<LogVerification>,
    /// Notes in files that are no checkpoints.
    problems: Vec<String>,
    key_file: PathBuf,
}

#[derive(serde::Serialize)]
pub struct LogReport {
    log: &'static str,
    rows: u64,
    /// Checkpoints that were compared, in files and in the database.
    checkpoints: u64,
    /// Rows of the largest checkpoint in the files.
    covered_rows: u64,
}

impl VerifiedLogs {
    pub async fn verify(data: &Path, store: &VerifyStore, options: &Verify) -> anyhow::Result<Self> {
        let key_file = options.key.clone().unwrap_or_else(|| data.join(PUBLIC_KEY_FILE));
        if options.key.is_some() && !key_file.exists() {
            bail!("--key {}: no such file", key_file.display());
        }
        let keys = load_verifier_keys(&key_file)?;
        let filed = match &options.checkpoints {
            Some(path) if keys.is_empty() => bail!(
                "--checkpoints {}: no public keys in {}; give the file with --key",
                path.display(),
                key_file.display()
            ),
            Some(path) => {
                let filed = FiledCheckpoints::read(path, &keys).context("--checkpoints")?;
                if filed.checkpoints.is_empty() && filed.problems.is_empty() {
                    bail!(
                        "--checkpoints {}: no checkpoints there; give a file of the server's checkpoints directory, or a copy of \
                         the directory",
                        path.display()
                    );
                }
                filed
            }
            None => FiledCheckpoints::read_data(data, &keys)?,
        };
        let mut logs = Vec::new();
        for log in LogName::ALL {
            let progress = counting_progress(match log {
                LogName::Ledger => "rows of the ledger log checked:",
                LogName::Audit => "rows of the audit log checked:",
            });
            logs.push(verify_log(store, log, &filed, &keys, |rows| progress.set_position(rows)).await?);
            progress.finish_and_clear();
        }
        Ok(Self { logs, problems: filed.problems, key_file })
    }

    pub fn findings(&self) -> impl Iterator<Item = String> {
        let problems = self.problems.iter().take(MAX_REPORTED_PROBLEMS);
        let problems = problems.map(|problem| format!("checkpoint in {problem}"));
        problems.chain(self.logs.iter().flat_map(|log| log.findings.reported.iter().cloned()))
    }

    pub fn more_findings(&self) -> u64 {
        let problems = self.problems.len().saturating_sub(MAX_REPORTED_PROBLEMS) as u64;
        problems + self.logs.iter().map(|log| log.findings.more).sum::<u64>()
    }

    pub fn print(&self) {
        for verified in &self.logs {
            let LogVerification { log, rows, checkpoints, covered_rows, unknown_checkpoints, findings } =
                verified;
            let result = match (findings.is_empty(), *checkpoints) {
                (false, _) => "differences found, see above",
                (true, 0) => "no checkpoints to compare with",
                (true, _) => "OK",
            };
            outln!(
                "{log} log: {} rows, {} checkpoints up to row {}: {result}",
                group_thousands(*rows),
                group_thousands(*checkpoints),
                group_thousands(*covered_rows)
            );
            if *unknown_checkpoints > 0 {
                outln!(
                    "warning: {} checkpoints of the {log} log in the database are of keys that are not in {}",
                    group_thousands(*unknown_checkpoints),
                    self.key_file.display()
                );
            }
        }
    }

    pub fn report(&self) -> Vec<LogReport> {
        let report = |log: &LogVerification| LogReport {
            log: log.log.as_str(),
            rows: log.rows,
            checkpoints: log.checkpoints,
            covered_rows: log.covered_rows,
        };
        self.logs.iter().map(report).collect()
    }
}
