//! `chancery verify`: recomputes what is recorded and says where it differs.

use super::{Missing, open};
use crate::cli::{Place, Verify};
use crate::output::{counting_progress, grouped, print_json, say};
use chancery_domain::{ChainHead, WriterId};
use chancery_metering::verify_ledger;
use std::process::ExitCode;

#[derive(serde::Serialize)]
struct Report {
    rows: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost: String,
    chains: Vec<Chain>,
    findings: Vec<String>,
    more_findings: u64,
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
    let progress = counting_progress("ledger rows checked:");
    let found = verify_ledger(store.as_ref(), |rows| progress.set_position(rows)).await?;
    progress.finish_and_clear();
    store.close().await;
    let total = found.total;
    let all_agree = found.findings.is_empty();
    if options.json {
        print_json(&Report {
            rows: total.requests,
            input_tokens: total.input_tokens,
            output_tokens: total.output_tokens,
            cost: total.cost.to_string(),
            chains: found.chains.into_iter().map(chain).collect(),
            findings: found.findings,
            more_findings: found.more_findings,
        })?;
    } else {
        found.findings.iter().for_each(|finding| say!("DIFFERS {finding}"));
        if found.more_findings > 0 {
            say!("DIFFERS in {} more places", grouped(found.more_findings));
        }
        say!(
            "ledger: {} rows, {} tokens in, {} out, {} {}: {}",
            grouped(total.requests),
            grouped(total.input_tokens),
            grouped(total.output_tokens),
            total.cost,
            config.currency,
            if all_agree { "all agree" } else { "see above" }
        );
    }
    Ok(if all_agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chain((writer, end): (WriterId, ChainHead)) -> Chain {
    Chain { writer, rows: end.rows, head: end.hash.to_string() }
}
