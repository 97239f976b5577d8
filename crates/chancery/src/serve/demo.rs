//! `--demo`: a demonstration firm in an empty data folder. How to reach it is kept in `DATA/demo.json` and printed at every
//! start.

use super::people::{Addresses, Ground};
use crate::commands::create_key;
use crate::config::Config;
use crate::data_folder::DataFolder;
use anyhow::{Context, bail};
use chancery_domain::{AccountName, Clock, RateLimits, SystemClock};
use chancery_metering::{Authenticator, MeterError};
use chancery_store::{NewAccount, Store};
use serde_json::json;
use std::fmt;
use std::sync::Arc;

const FILE: &str = "demo.json";
const ACCOUNT: &str = "Demo";
const LIMITS: RateLimits = RateLimits { requests_per_min: 6_000, tokens_per_min: 10_000_000 };

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Demo {
    api_url: String,
    portal_url: String,
    auth_url: String,
    api_key: String,
    model: String,
}

/// What is printed at every start, with a line to paste.
impl fmt::Display for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_url, api_key, model, .. } = self;
        let body = json!({
            "model": model,
            "instructions": "Answer in one short sentence.",
            "input": "What is a ledger?",
            "max_output_tokens": 64,
        });
        // Within single quotes a shell takes everything as it is, except the quote itself.
        let body = body.to_string().replace('\'', r"'\''");
        write!(
            f,
            "\nThe demonstration firm is open.\n\n  API      {api_url}\n  API key  {api_key}\n  model    {model}\n\n\
             Try it:\n\n\
             curl {api_url}/v1/generate \\\n  -H 'Authorization: Bearer {api_key}' \\\n  \
             -H 'Content-Type: application/json' \\\n  -d '{body}'\n\n"
        )
    }
}

/// Makes the firm, or finds the one that an earlier start made.
pub async fn prepare(
    data: &DataFolder,
    config: &Config,
    ground: &Ground,
    api_url: &str,
    addresses: &Addresses,
) -> anyhow::Result<Demo> {
    let store = &ground.store;
    let api_key = match earlier_key(data, store).await? {
        Some(key) => key,
        None => make_firm(data, store.as_ref()).await?,
    };
    // The addresses and the model may have changed since; the key has not.
    let demo = Demo {
        api_url: api_url.to_owned(),
        portal_url: addresses.portal.clone(),
        auth_url: addresses.issuer.clone(),
        api_key,
        model: config.models[0].name.clone(),
    };
    data.write_private(FILE, &serde_json::to_vec_pretty(&demo)?)?;
    Ok(demo)
}

async fn earlier_key(data: &DataFolder, store: &Arc<dyn Store>) -> anyhow::Result<Option<String>> {
    let path = data.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let Ok(demo) = serde_json::from_slice::<Demo>(&text) else {
        bail!(
            "{} is not what an earlier start wrote; remove it, and the next start makes a new key",
            path.display()
        );
    };
    let authenticator = Authenticator::new(Arc::clone(store), Arc::new(SystemClock));
    match authenticator.authenticate(Some(&demo.api_key)).await {
        Ok(_) => Ok(Some(demo.api_key)),
        Err(MeterError::InvalidKey | MeterError::NoBillingAccount) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn make_firm(data: &DataFolder, store: &dyn Store) -> anyhow::Result<String> {
    let name: AccountName = ACCOUNT.parse()?;
    let accounts = store.list_accounts().await?;
    let account = match accounts.as_slice() {
        [] => {
            store.create_account(NewAccount { name, limits: LIMITS, created_at: SystemClock.now() }).await?
        }
        // A start that was cut off after making the account leaves it without the file.
        [only] if only.name == name => only.clone(),
        _ => bail!(
            "--demo makes its firm in an empty data folder, and {} has accounts already; start without --demo, or with another --data",
            data.path().display()
        ),
    };
    Ok(create_key(store, Some(account.id), "demo".to_owned()).await?.reveal().to_owned())
}
