//! `chancery verify`: recomputes what is recorded and says where it differs.

use super::open;
use crate::cli::{Place, Verify};
use crate::output::{counting_progress, grouped, print_json};
use chancery_metering::verify_ledger;
use std::process::ExitCode;

#[derive(serde::Serialize)]
struct Report {
    rows: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost: String,
    findings: Vec<String>,
}

pub async fn run(place: &Place, options: &Verify) -> anyhow::Result<ExitCode> {
    let (config, store) = open(place).await?;
    let progress = counting_progress("ledger rows checked:");
    let found = verify_ledger(store.as_ref(), |rows| progress.set_position(rows)).await?;
    progress.finish_and_clear();
    store.close().await;
    let all_agree = found.findings.is_empty();
    if options.json {
        print_json(&Report {
            rows: found.rows,
            input_tokens: found.input_tokens,
            output_tokens: found.output_tokens,
            cost: found.cost.to_string(),
            findings: found.findings,
        })?;
    } else {
        found.findings.iter().for_each(|finding| println!("DIFFERS {finding}"));
        println!(
            "ledger: {} rows, {} tokens in, {} out, {} {}: {}",
            grouped(found.rows),
            grouped(found.input_tokens),
            grouped(found.output_tokens),
            found.cost,
            config.currency,
            if all_agree { "all agree" } else { "see above" }
        );
    }
    Ok(if all_agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
