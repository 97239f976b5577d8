//! `chancery migrate`: transfers all data from a SQLite file to PostgreSQL. The store copies the rows and compares them
//! (`store/src/transfer`); this command verifies both sides and shows progress.

use super::verify::{Recomputed, recompute};
use crate::cli::{Cli, Migrate, UrlArg};
use crate::output::{outln, print_json, print_table, row_progress};
use anyhow::{Context, bail};
use chancery_domain::{Clock, SystemClock, group_thousands};
use chancery_store::{
    DatabaseUrl, DbError, OpenError, Store, TransferError, TransferProgress, TransferSource, TransferTarget,
    TransferredTable,
};
use clap::CommandFactory;
use clap::error::ErrorKind;
use indicatif::ProgressBar;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Interval between progress lines when standard error is not a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

#[derive(serde::Serialize)]
struct Report {
    from: String,
    to: String,
    tables: Vec<TableReport>,
    rows: u64,
    /// Copying and comparing, without verifying both sides.
    move_s: f64,
    total_s: f64,
    ledger_rows: u64,
    invoices: u64,
    audit_rows: u64,
    /// Findings of verifying the target; empty if there are none.
    findings: Vec<String>,
    more_findings: u64,
}

#[derive(serde::Serialize)]
struct TableReport {
    table: &'static str,
    rows: u64,
}

pub async fn run(options: &Migrate) -> anyhow::Result<ExitCode> {
    let (from, to) = database_urls(options);
    let started = SystemClock.monotonic();
    let mut source = TransferSource::open(&from).await.map_err(|error| source_error(error, &from))?;
    let mut target = TransferTarget::open(&to).await.map_err(|error| target_error(error, &to))?;

    print_progress(format_args!("verifying {from}"));
    let before = recompute(&source.store().verify()).await.context("cannot verify the source")?;
    if let Some(finding) = before.findings().next() {
        bail!(
            "verification of {from} failed, so nothing was transferred: {finding}; run `chancery verify` to see all differences"
        )
    }

    let transfer_started = SystemClock.monotonic();
    let mut reporter = ProgressReporter::new(&to);
    let transferred = target.fill(&mut source, &mut |step| reporter.report(step)).await;
    reporter.bar.finish_and_clear();
    let transferred = transferred.map_err(|error| target_error(error, &to))?;
    let move_s = elapsed_s(transfer_started);

    print_progress(format_args!("verifying {to}"));
    let after = verify_target(&to).await.with_context(|| {
        format!(
            "all rows were transferred to {to} and compared, but the target could not be verified; set `database.url` to it and run `chancery verify` before you start a server"
        )
    })?;
    source.close().await;
    target.close().await;
    let done =
        TransferJob { from, to, tables: transferred, before, after, move_s, total_s: elapsed_s(started) };
    let findings = done.findings();
    if options.json {
        print_json(&done.report(&findings))?;
    } else {
        done.print(&findings);
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns both URLs after checking that the combination is supported.
fn database_urls(options: &Migrate) -> (DatabaseUrl, DatabaseUrl) {
    let read = |field: &str, text: &UrlArg| match text.0.parse::<DatabaseUrl>() {
        Ok(url) => url,
        Err(error) => exit_with_usage_error(&format!("{field}: {error}")),
    };
    let (from, to) = (read("--from", &options.from), read("--to", &options.to));
    if from.is_shared() {
        exit_with_usage_error(
            "--from must be a SQLite file (`--from sqlite:PATH`); to copy PostgreSQL to PostgreSQL, use `pg_dump` and `pg_restore`",
        )
    }
    if !to.is_shared() {
        exit_with_usage_error(
            "--to must be a PostgreSQL database (`--to postgres://USER:PASSWORD@HOST:PORT/DATABASE`); to move a SQLite file, stop the server and copy it",
        )
    }
    if let (Some(host), false) = (to.cleartext_host(), options.allow_cleartext) {
        exit_with_usage_error(&format!(
            "--to: all records would be sent to {host} in clear text; add ?sslmode=verify-full to the URL, or --allow-cleartext if that network is private"
        ))
    }
    (from, to)
}

/// Exits like any other command-line error.
fn exit_with_usage_error(what: &str) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, what).exit()
}

fn source_error(error: TransferError, from: &DatabaseUrl) -> anyhow::Error {
    match error {
        TransferError::Open(OpenError::NoDatabase { .. }) => anyhow::anyhow!(
            "--from: no Chancery database at {from}; use `chancery.db` in the data directory, or `database.url` from `chancery config show`"
        ),
        TransferError::Open(OpenError::DatabaseFileInUse { file }) => anyhow::anyhow!(
            "--from: {} is in use by a chancery server, a large import or another transfer; stop it and try again",
            file.display()
        ),
        error => anyhow::Error::new(error).context("--from"),
    }
}

fn target_error(error: TransferError, to: &DatabaseUrl) -> anyhow::Error {
    match error {
        TransferError::Open(OpenError::OtherServerRunning) => anyhow::anyhow!(
            "--to: {to} is in use by a chancery server or another transfer; stop it, or choose another database"
        ),
        TransferError::Database(DbError::Unavailable(why))
        | TransferError::Open(OpenError::Database(DbError::Unavailable(why))) => anyhow::anyhow!(
            "--to: no response from {to}: {}; the target is unchanged unless the final commit was in progress; run the command again to find out",
            why.replace("`database.url`", "`--to`")
        ),
        error => anyhow::Error::new(error).context(format!("--to {to}")),
    }
}

/// Opens the target as a server would.
async fn verify_target(to: &DatabaseUrl) -> anyhow::Result<Recomputed> {
    let store = Store::open_existing(to).await?;
    let recomputed = recompute(&store.verify()).await;
    store.close().await;
    recomputed
}

/// A completed transfer.
struct TransferJob {
    from: DatabaseUrl,
    to: DatabaseUrl,
    tables: Vec<TransferredTable>,
    before: Recomputed,
    after: Recomputed,
    move_s: f64,
    total_s: f64,
}

impl TransferJob {
    fn findings(&self) -> Vec<String> {
        let findings: Vec<String> = self.after.findings().cloned().collect();
        if findings.is_empty() && self.before != self.after {
            return vec!["source and target are each consistent, but differ from each other".to_owned()];
        }
        findings
    }

    fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    fn report(&self, findings: &[String]) -> Report {
        let tables =
            self.tables.iter().map(|&TransferredTable { name, rows }| TableReport { table: name, rows });
        Report {
            from: self.from.to_string(),
            to: self.to.to_string(),
            tables: tables.collect(),
            rows: self.rows(),
            move_s: self.move_s,
            total_s: self.total_s,
            ledger_rows: self.after.ledger.total.requests,
            invoices: self.after.invoices.documents,
            audit_rows: self.after.audit.rows,
            findings: findings.to_vec(),
            more_findings: self.after.more_findings(),
        }
    }

    fn print(&self, findings: &[String]) {
        let Self { from, to, tables, after, move_s, total_s, .. } = self;
        let filled = tables.iter().filter(|table| table.rows > 0);
        let lines: Vec<_> =
            filled.map(|table| vec![table.name.to_owned(), group_thousands(table.rows)]).collect();
        print_table(&["table", "rows"], &lines);
        let (rows, empty) = (group_thousands(self.rows()), tables.len() - lines.len());
        outln!(
            "transferred {rows} rows in {move_s:.1} s ({total_s:.1} s with verification); {empty} tables were empty"
        );
        if !findings.is_empty() {
            findings.iter().for_each(|finding| outln!("DIFFERS {finding}"));
            outln!(
                "do not start a server on {to}: drop the database, create a new one with `createdb`, and try again"
            );
            outln!("{from} was not changed");
            return;
        }
        let [ledger, invoices, audit] =
            [after.ledger.total.requests, after.invoices.documents, after.audit.rows].map(group_thousands);
        outln!(
            "source and target are identical and verified: {ledger} ledger rows, {invoices} invoices, {audit} audit rows"
        );
        outln!("next: set `database.url` to {to} (with user and password) and start the server");
        outln!("to run several servers, also set `limits.store` to a Redis URL");
        outln!(
            "keep {from} as a backup and do not start a server on it: new usage there would not be in the new database"
        );
    }
}

fn elapsed_s(since: Instant) -> f64 {
    SystemClock.monotonic().duration_since(since).as_secs_f64()
}

/// Prints nothing on a terminal, which has progress bars.
fn print_progress(what: std::fmt::Arguments<'_>) {
    if !std::io::stderr().is_terminal() {
        // A closed standard error is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{what}");
    }
}

/// Draws a progress bar on a terminal, and writes lines otherwise.
struct ProgressReporter {
    bar: ProgressBar,
    to: String,
    rows: u64,
    verb: &'static str,
    last_printed: Instant,
}

impl ProgressReporter {
    fn new(to: &DatabaseUrl) -> Self {
        let bar = row_progress(0, "transferring");
        Self { bar, to: to.to_string(), rows: 0, verb: "transferred", last_printed: SystemClock.monotonic() }
    }

    fn report(&mut self, step: TransferProgress) {
        match step {
            TransferProgress::Started { rows } => {
                self.rows = rows;
                self.bar.set_length(rows);
                print_progress(format_args!("transferring {} rows to {}", group_thousands(rows), self.to));
            }
            TransferProgress::Table { name, rows } => {
                self.bar.set_message(name);
                if rows > 0 {
                    print_progress(format_args!("transferring {name}: {} rows", group_thousands(rows)));
                }
            }
            TransferProgress::Rows(rows) => {
                self.bar.set_position(rows);
                let now = SystemClock.monotonic();
                if now.duration_since(self.last_printed) >= PROGRESS_INTERVAL {
                    self.last_printed = now;
                    print_progress(format_args!(
                        "{} {} of {} rows",
                        self.verb,
                        group_thousands(rows),
                        group_thousands(self.rows)
                    ));
                }
            }
            TransferProgress::RestoringConstraints => {
                self.bar.set_message("checking references");
                print_progress(format_args!("checking foreign-key references"));
            }
            TransferProgress::Verifying => {
                self.bar.set_message("comparing");
                self.bar.set_position(0);
                self.verb = "compared";
                print_progress(format_args!("comparing source and target"));
            }
        }
    }
}
