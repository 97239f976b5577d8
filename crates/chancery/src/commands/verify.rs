//! `chancery verify`: recomputes what is recorded and reports differences.

use super::verify_logs::{LogReport, VerifiedLogs};
use super::{IfMissing, open};
use crate::cli::{GlobalArgs, Verify};
use crate::config::Config;
use crate::output::{counting_progress, outln, print_json};
use chancery_domain::{ChainHead, Clock, SystemClock, WriterId, group_thousands};
use chancery_metering::{Journal, JournalStatus, LimitStoreUrl, open_limiter};
use chancery_store::VerifyStore;
use chancery_verify::{
    AuditVerification, Findings, InvoiceVerification, LedgerVerification, LimitVerification, verify_audit,
    verify_invoices, verify_ledger, verify_limits,
};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(serde::Serialize)]
struct Report {
    rows: u64,
    input_tokens: u64,
    cached_input_tokens: u64,
    output_tokens: u64,
    cost: String,
    chains: Vec<Chain>,
    invoices: InvoiceReport,
    audit: AuditReport,
    logs: Vec<LogReport>,
    journal: JournalReport,
    findings: Vec<String>,
    more_findings: u64,
}

#[derive(serde::Serialize)]
struct InvoiceReport {
    /// Invoices and credit notes.
    documents: u64,
}

/// Usage that may not be in the ledger, in this machine's data directory.
#[derive(serde::Serialize)]
struct JournalReport {
    waiting: usize,
    rejected: usize,
}

#[derive(serde::Serialize)]
struct AuditReport {
    rows: u64,
    chains: Vec<Chain>,
}

#[derive(serde::Serialize)]
struct Chain {
    writer: WriterId,
    rows: u64,
    /// Hash of the chain's last row.
    head: String,
}

pub async fn run(global_args: &GlobalArgs, options: &Verify) -> anyhow::Result<ExitCode> {
    let (config, store) = open(global_args, IfMissing::Fail).await?;
    let verify_store = store.verify();
    let recomputed = recompute(&verify_store).await?;
    let logs = VerifiedLogs::verify(&config.data, &verify_store, options).await?;
    let limits = check_limits(&config, &verify_store).await;
    store.close().await;
    let JournalStatus { waiting, rejected } = Journal::status(&config.data)?;
    let more_findings = recomputed.more_findings() + logs.more_findings();
    let limit_findings = limits.iter().flat_map(|limits| &limits.findings);
    let findings = recomputed.findings().chain(limit_findings).cloned();
    let findings: Vec<String> = findings.chain(logs.findings()).collect();
    let Recomputed { ledger, invoices, audit } = recomputed;
    let total = ledger.total;
    let all_agree = findings.is_empty();
    if options.json {
        print_json(&Report {
            rows: total.requests,
            input_tokens: total.input_tokens,
            cached_input_tokens: total.cached_input_tokens,
            output_tokens: total.output_tokens,
            cost: total.cost.to_string(),
            chains: ledger.chains.into_iter().map(chain).collect(),
            invoices: InvoiceReport { documents: invoices.documents },
            audit: AuditReport { rows: audit.rows, chains: audit.chains.into_iter().map(chain).collect() },
            logs: logs.report(),
            journal: JournalReport { waiting, rejected },
            findings,
            more_findings,
        })?;
    } else {
        findings.iter().for_each(|finding| outln!("DIFFERS {finding}"));
        if more_findings > 0 {
            outln!("DIFFERS {} more", group_thousands(more_findings));
        }
        outln!(
            "ledger: {} rows, {} input tokens, {} output tokens, {} {}: {}",
            group_thousands(total.requests),
            group_thousands(total.input_tokens),
            group_thousands(total.output_tokens),
            total.cost,
            config.billing.currency,
            if ledger.findings.is_empty() { "OK" } else { "differences found, see above" }
        );
        outln!(
            "invoices: {} documents: {}",
            group_thousands(invoices.documents),
            if invoices.findings.is_empty() { "OK" } else { "differences found, see above" }
        );
        outln!(
            "audit: {} rows: {}",
            group_thousands(audit.rows),
            if audit.findings.is_empty() { "OK" } else { "differences found, see above" }
        );
        logs.print();
        if let Some(limits) = limits {
            outln!(
                "limits: last minute of {} accounts: {}",
                group_thousands(limits.accounts as u64),
                if limits.findings.is_empty() { "OK" } else { "differences found, see above" }
            );
        }
        let journal = config.data.join(chancery_metering::JOURNAL_FILE);
        if waiting > 0 {
            outln!(
                "warning: {waiting} usage rows are in {} and may not be in the ledger yet; a running server writes them",
                journal.display()
            );
        }
        if rejected > 0 {
            outln!(
                "warning: {rejected} usage rows are in {}.rejected and not in the ledger; see docs/troubleshooting.md",
                journal.display()
            );
        }
    }
    Ok(if all_agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Results of recomputing the database from its rows.
#[derive(PartialEq, Eq)]
pub struct Recomputed {
    pub ledger: LedgerVerification,
    pub invoices: InvoiceVerification,
    pub audit: AuditVerification,
}

impl Recomputed {
    pub fn findings(&self) -> impl Iterator<Item = &String> {
        self.all().into_iter().flat_map(|findings| &findings.reported)
    }

    /// Returns the number of findings beyond those listed.
    pub fn more_findings(&self) -> u64 {
        self.all().map(|findings| findings.more).iter().sum()
    }

    fn all(&self) -> [&Findings; 3] {
        [&self.ledger.findings, &self.invoices.findings, &self.audit.findings]
    }
}

/// Verifies everything but the rate limits, which are not in the database.
pub async fn recompute(store: &VerifyStore) -> anyhow::Result<Recomputed> {
    let progress = counting_progress("ledger rows checked:");
    let ledger = verify_ledger(store, |rows| progress.set_position(rows)).await?;
    progress.finish_and_clear();
    let progress = counting_progress("invoices checked:");
    let invoices = verify_invoices(store, |documents| progress.set_position(documents)).await?;
    progress.finish_and_clear();
    let progress = counting_progress("audit rows checked:");
    let audit = verify_audit(store, |rows| progress.set_position(rows)).await?;
    progress.finish_and_clear();
    Ok(Recomputed { ledger, invoices, audit })
}

fn chain((writer, head): (WriterId, ChainHead)) -> Chain {
    Chain { writer, rows: head.rows, head: head.hash.to_string() }
}

/// Returns `None` if the limits are in a server's memory, where no other process can read them. An unreachable store is a
/// finding, so that the ledger is verified anyway.
async fn check_limits(config: &Config, store: &VerifyStore) -> Option<LimitVerification> {
    if matches!(config.limit_store, LimitStoreUrl::Memory) {
        return None;
    }
    let checked = async {
        let limiter = open_limiter(&config.limit_store, Arc::new(SystemClock)).await?;
        verify_limits(store, limiter.as_ref(), SystemClock.now()).await
    };
    Some(checked.await.unwrap_or_else(|error| LimitVerification {
        accounts: 0,
        findings: vec![format!("limits: cannot check {}: {error}", config.limit_store)],
    }))
}
