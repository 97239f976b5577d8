//! `chancery secrets rotate`: replaces the key that encrypts the secrets in the database. The store encrypts them again
//! (`store/src/secrets/rotation.rs`); this command decides which key is next:
//!
//! 1. A rotation that has not finished goes on: the newest key is not current yet, or another key still encrypts
//!    something.
//! 2. Otherwise a new key is added to the key file. If servers may have other copies of that file, the command ends there:
//!    they must have the new key before anything is encrypted with it.

use super::{IfMissing, open};
use crate::cli::{GlobalArgs, Secrets};
use crate::config::Config;
use crate::encryption_keys::KeySource;
use crate::output::outln;
use anyhow::{Context, bail};
use chancery_store::{EncryptionKeyId, EncryptionKeySource, RotationSummary, Store};

pub async fn run(global_args: &GlobalArgs, command: &Secrets) -> anyhow::Result<()> {
    let (config, store) = open(global_args, IfMissing::Fail).await?;
    let outcome = match command {
        Secrets::Rotate => rotate(&config, &store).await,
    };
    store.close().await;
    outcome
}

async fn rotate(config: &Config, store: &Store) -> anyhow::Result<()> {
    let Some(current) = store.encryption.current_encryption_key().await? else {
        outln!("no secrets are stored yet, so there is nothing to rotate");
        return Ok(());
    };
    let source = KeySource::from_config(config);
    let keys = source.load().map_err(anyhow::Error::msg)?;
    let newest = keys.first().context("there is no key")?.id();
    let usage = store.encryption.encryption_key_usage().await?;
    let has_finished = newest == current && usage.iter().all(|usage| usage.key == Some(current));
    let new_key = match has_finished {
        false => newest,
        true => {
            let added = add_key(&source)?;
            let has_one_copy =
                matches!(source, KeySource::DataDirectory(_)) && !config.database_url.is_shared();
            if !has_one_copy {
                outln!(
                    "now give every node the new file, and restart nodes that read it as a systemd credential; then run `chancery secrets rotate` again"
                );
                return Ok(());
            }
            added
        }
    };
    let RotationSummary { rotated, failed } = store.encryption.rotate_encryption_key(new_key).await?;
    outln!("{rotated} secrets encrypted with the key {new_key}");
    if !failed.is_empty() {
        failed.iter().for_each(|failure| eprintln!("chancery: {failure}"));
        bail!("{} secrets cannot be decrypted and were left unchanged", failed.len());
    }
    outln!(
        "older keys are still in {}: keep them as long as backups from before, and then delete them",
        source.location()
    );
    Ok(())
}

fn add_key(source: &KeySource) -> anyhow::Result<EncryptionKeyId> {
    let Some(path) = source.writable_file() else {
        bail!(
            "{}: has no new key; put the output of `openssl rand -base64 32` in front of the current key, restart every node with both, and run this again",
            source.location()
        );
    };
    let key = source.add_key(path)?;
    outln!("key {} added to {}", key.id(), path.display());
    Ok(key.id())
}
