//! `chancery verify`: recomputes what is recorded and says where it differs.

use super::{Missing, open};
use crate::cli::{Place, Verify};
use crate::config::Config;
use crate::output::{counting_progress, print_json, say};
use chancery_domain::{ChainHead, Clock, SystemClock, WriterId, grouped};
use chancery_metering::{LimitStoreUrl, open_limiter};
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
    output_tokens: u64,
    cost: String,
    chains: Vec<Chain>,
    invoices: InvoiceReport,
    audit: AuditReport,
    findings: Vec<String>,
    more_findings: u64,
}

#[derive(serde::Serialize)]
struct InvoiceReport {
    /// Invoices and credit notes.
    documents: u64,
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
    /// Hash of its last row.
    head: String,
}

pub async fn run(place: &Place, options: &Verify) -> anyhow::Result<ExitCode> {
    let (config, store) = open(place, Missing::Refuse).await?;
    let verified = store.verify();
    let recomputed = recompute(&verified).await?;
    let limits = check_limits(&config, &verified).await;
    store.close().await;
    let more_findings = recomputed.more_findings();
    let limit_findings = limits.iter().flat_map(|limits| &limits.findings);
    let findings: Vec<String> = recomputed.findings().chain(limit_findings).cloned().collect();
    let Recomputed { ledger: found, invoices, audit } = recomputed;
    let total = found.total;
    let all_agree = findings.is_empty();
    if options.json {
        print_json(&Report {
            rows: total.requests,
            input_tokens: total.input_tokens,
            output_tokens: total.output_tokens,
            cost: total.cost.to_string(),
            chains: found.chains.into_iter().map(chain).collect(),
            invoices: InvoiceReport { documents: invoices.documents },
            audit: AuditReport { rows: audit.rows, chains: audit.chains.into_iter().map(chain).collect() },
            findings,
            more_findings,
        })?;
    } else {
        findings.iter().for_each(|finding| say!("DIFFERS {finding}"));
        if more_findings > 0 {
            say!("DIFFERS in {} more places", grouped(more_findings));
        }
        say!(
            "ledger: {} rows, {} tokens in, {} out, {} {}: {}",
            grouped(total.requests),
            grouped(total.input_tokens),
            grouped(total.output_tokens),
            total.cost,
            config.billing.currency,
            if found.findings.is_empty() { "all agree" } else { "see above" }
        );
        say!(
            "invoices: {} documents: {}",
            grouped(invoices.documents),
            if invoices.findings.is_empty() { "all agree with the ledger" } else { "see above" }
        );
        say!(
            "audit: {} rows: {}",
            grouped(audit.rows),
            if audit.findings.is_empty() { "all agree" } else { "see above" }
        );
        if let Some(limits) = limits {
            say!(
                "limits: the last minute of {} accounts: {}",
                grouped(limits.accounts as u64),
                if limits.findings.is_empty() { "all counted" } else { "see above" }
            );
        }
    }
    Ok(if all_agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the database says, recomputed from its rows.
#[derive(PartialEq, Eq)]
pub struct Recomputed {
    pub ledger: LedgerVerification,
    pub invoices: InvoiceVerification,
    pub audit: AuditVerification,
}

impl Recomputed {
    pub fn findings(&self) -> impl Iterator<Item = &String> {
        self.all().into_iter().flat_map(|findings| &findings.told)
    }

    /// How many more there are.
    pub fn more_findings(&self) -> u64 {
        self.all().map(|findings| findings.more).iter().sum()
    }

    fn all(&self) -> [&Findings; 3] {
        [&self.ledger.findings, &self.invoices.findings, &self.audit.findings]
    }
}

/// Everything but the limits per minute, which are not in the database.
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

fn chain((writer, end): (WriterId, ChainHead)) -> Chain {
    Chain { writer, rows: end.rows, head: end.hash.to_string() }
}

/// None where the limits are in the memory of a server, which no other process can ask. A store that cannot be asked is a
/// finding: the ledger is verified all the same.
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
        findings: vec![format!("limits: {} could not be checked: {error}", config.limit_store)],
    }))
}
