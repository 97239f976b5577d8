//! `chancery migrate`: a firm moves from its SQLite file to PostgreSQL, as a whole. The store moves the rows and compares
//! them (`store/moving`); here both sides are verified, and people are told how far it is.

use super::verify::{Recomputed, recompute};
use crate::cli::{Cli, Migrate, UrlText};
use crate::output::{print_json, print_table, row_progress, say};
use anyhow::{Context, bail};
use chancery_domain::{Clock, SystemClock, grouped};
use chancery_store::{
    DatabaseUrl, DbError, MoveSource, MoveStep, MoveTarget, MovedTable, OpenError, Store, TransferError,
};
use clap::CommandFactory;
use clap::error::ErrorKind;
use indicatif::ProgressBar;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often a line tells how far it is where there is no terminal to draw on.
const LINE_PAUSE: Duration = Duration::from_secs(10);

#[derive(serde::Serialize)]
struct Report {
    from: String,
    to: String,
    tables: Vec<TableReport>,
    rows: u64,
    /// Moving and comparing, without the verification of both sides.
    move_s: f64,
    total_s: f64,
    ledger_rows: u64,
    invoices: u64,
    audit_rows: u64,
    /// What the verification of the target found; empty when all is well.
    findings: Vec<String>,
    more_findings: u64,
}

#[derive(serde::Serialize)]
struct TableReport {
    table: &'static str,
    rows: u64,
}

pub async fn run(options: &Migrate) -> anyhow::Result<ExitCode> {
    let (from, to) = addresses(options);
    let began = SystemClock.monotonic();
    let mut source = MoveSource::open(&from).await.map_err(|error| about_source(error, &from))?;
    let mut target = MoveTarget::open(&to).await.map_err(|error| about_target(error, &to))?;

    tell(format_args!("checking {from}"));
    let before = recompute(&source.store().verify()).await.context("the source could not be verified")?;
    if let Some(finding) = before.findings().next() {
        bail!(
            "{from} does not agree with itself, so it is not moved and nothing was written: {finding}; `chancery verify` names everything that differs"
        )
    }

    let began_moving = SystemClock.monotonic();
    let mut teller = Teller::new(&to);
    let moved = target.fill(&mut source, &mut |step| teller.hear(step)).await;
    teller.bar.finish_and_clear();
    let moved = moved.map_err(|error| about_target(error, &to))?;
    let move_s = elapsed_s(began_moving);

    tell(format_args!("checking {to}"));
    let after = verify_target(&to).await.with_context(|| {
        format!(
            "everything was moved to {to} and compared row by row, but could not be verified there; set `database.url` to it and run `chancery verify` before you serve it"
        )
    })?;
    source.close().await;
    target.close().await;
    let done = Move { from, to, tables: moved, before, after, move_s, total_s: elapsed_s(began) };
    let findings = done.findings();
    if options.json {
        print_json(&done.report(&findings))?;
    } else {
        done.print(&findings);
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Both addresses, once they are known to go together.
fn addresses(options: &Migrate) -> (DatabaseUrl, DatabaseUrl) {
    let read = |field: &str, text: &UrlText| match text.0.parse::<DatabaseUrl>() {
        Ok(url) => url,
        Err(error) => wrong(&format!("{field}: {error}")),
    };
    let (from, to) = (read("--from", &options.from), read("--to", &options.to));
    if from.is_shared() {
        wrong(
            "--from is a PostgreSQL database, and only a SQLite file can be moved (`--from sqlite:PATH --to postgres://…`): the way back is not offered, and from one PostgreSQL to another `pg_dump` and `pg_restore` take everything along",
        )
    }
    if !to.is_shared() {
        wrong(
            "--to is a SQLite file, and a firm moves to PostgreSQL (`--to postgres://USER:PASSWORD@HOST:PORT/DATABASE`); to have a SQLite file elsewhere, stop the server and copy the file",
        )
    }
    (from, to)
}

/// Ends like every other mistake in the command line.
fn wrong(what: &str) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, what).exit()
}

fn about_source(error: TransferError, from: &DatabaseUrl) -> anyhow::Error {
    match error {
        TransferError::Open(OpenError::NoDatabase { .. }) => anyhow::anyhow!(
            "--from: there is no Chancery database at {from}; it is `chancery.db` in the data folder, or what `database.url` says (`chancery config show`)"
        ),
        TransferError::Open(OpenError::FileIsServed { file }) => anyhow::anyhow!(
            "--from: a chancery server (or a large import, or another move) runs on {}, and what it writes now would not come along; stop it and try again",
            file.display()
        ),
        error => anyhow::Error::new(error).context("--from"),
    }
}

fn about_target(error: TransferError, to: &DatabaseUrl) -> anyhow::Error {
    match error {
        TransferError::Open(OpenError::ServedByAnother) => anyhow::anyhow!(
            "--to: a chancery server (or another move) runs on {to}; stop it, or choose a database that is nobody's"
        ),
        TransferError::Database(DbError::Unavailable(why))
        | TransferError::Open(OpenError::Database(DbError::Unavailable(why))) => anyhow::anyhow!(
            "--to: {to} did not answer: {}; the target is as it was, or, if this came with the very last step, as a whole: another try tells",
            why.replace("`database.url`", "`--to`")
        ),
        error => anyhow::Error::new(error).context(format!("--to {to}")),
    }
}

/// The way a server comes to it.
async fn verify_target(to: &DatabaseUrl) -> anyhow::Result<Recomputed> {
    let store = Store::open_existing(to).await?;
    let recomputed = recompute(&store.verify()).await;
    store.close().await;
    recomputed
}

/// A move that is done.
struct Move {
    from: DatabaseUrl,
    to: DatabaseUrl,
    tables: Vec<MovedTable>,
    before: Recomputed,
    after: Recomputed,
    move_s: f64,
    total_s: f64,
}

impl Move {
    fn findings(&self) -> Vec<String> {
        let findings: Vec<String> = self.after.findings().cloned().collect();
        if findings.is_empty() && self.before != self.after {
            return vec!["both sides agree with themselves, and not with each other".to_owned()];
        }
        findings
    }

    fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    fn report(&self, findings: &[String]) -> Report {
        let tables = self.tables.iter().map(|&MovedTable { name, rows }| TableReport { table: name, rows });
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
        let lines: Vec<_> = filled.map(|table| vec![table.name.to_owned(), grouped(table.rows)]).collect();
        print_table(&["table", "rows"], &lines);
        let (rows, empty) = (grouped(self.rows()), tables.len() - lines.len());
        say!(
            "moved {rows} rows in {move_s:.1} s, {total_s:.1} s with verification; {empty} tables were empty"
        );
        if !findings.is_empty() {
            findings.iter().for_each(|finding| say!("DIFFERS {finding}"));
            say!("do not serve {to}: drop that database, make another with `createdb`, and try again");
            say!("{from} is as it was");
            return;
        }
        let [ledger, invoices, audit] =
            [after.ledger.total.requests, after.invoices.documents, after.audit.rows].map(grouped);
        say!(
            "both sides are the same, row by row, and verified: {ledger} ledger rows, {invoices} invoices, {audit} audit rows"
        );
        say!("now set `database.url` to {to} (with its user and password), and start the server");
        say!("for more than one server, set `limits.store` to a Redis too");
        say!(
            "keep {from} as it is, and start no server on it any more: what that one billed would not be here"
        );
    }
}

fn elapsed_s(since: Instant) -> f64 {
    SystemClock.monotonic().duration_since(since).as_secs_f64()
}

/// On a terminal the bars tell.
fn tell(what: std::fmt::Arguments<'_>) {
    if !std::io::stderr().is_terminal() {
        // Whoever closed the other end does not want to know, and that is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{what}");
    }
}

/// Draws a bar on a terminal, and writes lines elsewhere.
struct Teller {
    bar: ProgressBar,
    to: String,
    rows: u64,
    doing: &'static str,
    last_line: Instant,
}

impl Teller {
    fn new(to: &DatabaseUrl) -> Self {
        let bar = row_progress(0, "moving");
        Self { bar, to: to.to_string(), rows: 0, doing: "moved", last_line: SystemClock.monotonic() }
    }

    fn hear(&mut self, step: MoveStep) {
        match step {
            MoveStep::Begins { rows } => {
                self.rows = rows;
                self.bar.set_length(rows);
                tell(format_args!("moving {} rows to {}", grouped(rows), self.to));
            }
            MoveStep::Table { name, rows } => {
                self.bar.set_message(name);
                if rows > 0 {
                    tell(format_args!("moving {name}: {} rows", grouped(rows)));
                }
            }
            MoveStep::Rows(rows) => {
                self.bar.set_position(rows);
                let now = SystemClock.monotonic();
                if now.duration_since(self.last_line) >= LINE_PAUSE {
                    self.last_line = now;
                    tell(format_args!("{} {} of {} rows", self.doing, grouped(rows), grouped(self.rows)));
                }
            }
            MoveStep::Rules => {
                self.bar.set_message("looking at references");
                tell(format_args!("looking whether all that rows refer to is there"));
            }
            MoveStep::Compares => {
                self.bar.set_message("comparing");
                self.bar.set_position(0);
                self.doing = "compared";
                tell(format_args!("reading everything back and comparing it"));
            }
        }
    }
}
