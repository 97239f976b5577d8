//! `chancery receipt verify`: proves offline that a request was billed as its receipt says. It needs no database.

use crate::cli::{GlobalArgs, Receipt, ReceiptVerify};
use crate::config::Loaded;
use crate::output::outln;
use anyhow::{Context, bail};
use chancery_domain::group_thousands;
use chancery_tlog::ProvedRow;
use chancery_transparency::{FiledCheckpoints, PUBLIC_KEY_FILE, load_verifier_keys};
use std::path::Path;

/// A larger file is not a receipt.
const MAX_BYTES: u64 = 1 << 20;

pub fn run(global_args: &GlobalArgs, command: &Receipt) -> anyhow::Result<()> {
    match command {
        Receipt::Verify(options) => verify(global_args, options),
    }
}

fn verify(global_args: &GlobalArgs, options: &ReceiptVerify) -> anyhow::Result<()> {
    let ReceiptVerify { file, checkpoint, key } = options;
    let key = match key {
        Some(key) => key.clone(),
        None => {
            let config = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?.config;
            config.data.join(PUBLIC_KEY_FILE)
        }
    };
    let keys = load_verifier_keys(&key)?;
    if keys.is_empty() {
        bail!("no public keys in {}; give the file with --key", key.display());
    }
    let filed = FiledCheckpoints::read(checkpoint, &keys).context("--checkpoint")?;
    let trusted: Vec<_> = filed.checkpoints.iter().map(|filed| filed.checkpoint).collect();
    if let (true, Some(problem)) = (trusted.is_empty(), filed.problems.first()) {
        bail!("--checkpoint: {problem}");
    }
    let named = || file.display().to_string();
    let receipt = chancery_tlog::Receipt::parse(&read(file).with_context(named)?).with_context(named)?;
    let ProvedRow { row, index, checkpoint } = receipt.verify(&trusted, &keys).with_context(named)?;
    outln!(
        "OK: {} is row {} of the {} rows in the checkpoint",
        row.request_id,
        group_thousands(index),
        group_thousands(checkpoint.size)
    );
    outln!(
        "{}, {}: {} input tokens ({} cached), {} output tokens, cost {}",
        row.at.to_iso(),
        row.model,
        group_thousands(row.input_tokens.into()),
        group_thousands(row.cached_input_tokens.into()),
        group_thousands(row.output_tokens.into()),
        row.cost
    );
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::metadata(file)?.len();
    if bytes > MAX_BYTES {
        bail!("file has {bytes} bytes; expected a receipt");
    }
    Ok(std::fs::read_to_string(file)?)
}
