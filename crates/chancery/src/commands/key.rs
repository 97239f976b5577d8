//! `chancery key`: API keys. `create` prints only the key to standard output, once.

use super::{IfMissing, open};
use crate::cli::{GlobalArgs, Key as Command};
use crate::operator::Operator;
use crate::output::{outln, print_json, print_table};
use anyhow::{Context, bail};
use chancery_domain::{
    AccountState, ApiKey, Clock, Key, KeyLimits, KeyPrefix, KeyState, OsRandomness, PreviousSecret,
    SystemClock, UnixMillis, group_thousands,
};
use chancery_policy::{FirmResource, ManageAccounts};
use chancery_store::{AccountChange, AccountError, AdminStore, KeyRotation, KeyWithAccount, NewKey};
use std::io::Write;

/// A shorter prefix could match a key by accident.
const MIN_PREFIX_CHARS: usize = 5;

pub async fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    let if_missing =
        if matches!(command, Command::Create { .. }) { IfMissing::Create } else { IfMissing::Fail };
    let (_, store) = open(global_args, if_missing).await?;
    let admin = store.admin();
    match command {
        Command::Create { account, label, limits } => {
            let account = match account {
                Some(name) => Some(admin.account_lookup.account_by_name(&name).await?.id),
                None => None,
            };
            let limits = limits.change().apply(KeyLimits::default());
            let is_expired = limits.is_expired(SystemClock.now());
            let key = create_key(&admin, account, label, limits).await?;
            if let Err(error) = writeln!(std::io::stdout(), "{}", key.reveal()) {
                // A key that no one has seen must not stay valid.
                change_key(&admin, AccountChange::RevokeKey(key.prefix())).await?;
                return Err(error).context("cannot print the key, so it was revoked");
            }
            if is_expired {
                warn_expired(&key.prefix());
            }
            if account.is_none() {
                eprintln!(
                    "this key has no account yet; attach it with: chancery key attach {} --account NAME",
                    key.prefix()
                );
            }
        }
        Command::Attach { prefix, account } => {
            let key = find(&admin, &prefix).await?.key;
            let account = admin.account_lookup.account_by_name(&account).await?;
            let account_change = AccountChange::AttachKey { key: key.prefix.clone(), account: account.id };
            change_key(&admin, account_change).await?;
            outln!("key {} attached to {}", key.prefix, account.name);
        }
        Command::Limits { prefix, limits } => {
            let key = find(&admin, &prefix).await?.key;
            let account_change =
                AccountChange::SetKeyLimits { key: key.prefix.clone(), change: limits.change() };
            change_key(&admin, account_change).await?;
            let key = find(&admin, key.prefix.as_str()).await?.key;
            outln!("key {}: {}", key.prefix, limits_text(&key.limits));
        }
        Command::Rotate { prefix, overlap, end_overlap } => {
            let found = find(&admin, &prefix).await?.key;
            let key = ApiKey::with_new_secret(&found.prefix, &OsRandomness);
            let now = SystemClock.now();
            let previous = PreviousSecret { hash: found.hash, expires_at: now.after(overlap) };
            let rotation = KeyRotation {
                key: found.prefix.clone(),
                replaces: found.hash,
                hash: key.hash(),
                overlap_ends_at: previous.expires_at,
                ends_running_overlap: end_overlap,
            };
            change_key(&admin, AccountChange::RotateKey(rotation)).await?;
            let rotated = Key { previous_secret: Some(previous), ..found };
            let old_key = match rotated.overlap_ends_at(now) {
                Some(until) => format!("the old key works until {}", until.to_iso()),
                None => "the old key no longer works".to_owned(),
            };
            writeln!(std::io::stdout(), "{}", key.reveal()).with_context(|| {
                format!(
                    "cannot print the new key, and it is not shown again; {old_key}; to get another: chancery key \
                     rotate {} --end-overlap, which stops the old key at once",
                    rotated.prefix
                )
            })?;
            eprintln!("{old_key}");
            if rotated.limits.is_expired(now) {
                warn_expired(&rotated.prefix);
            }
        }
        Command::List { json } => print_list(&admin.account_lookup.list_keys().await?, json)?,
        Command::Revoke { prefix } => {
            let key = find(&admin, &prefix).await?.key;
            change_key(&admin, AccountChange::RevokeKey(key.prefix.clone())).await?;
            outln!("key {} revoked; it stops working within one second", key.prefix);
        }
    }
    store.close().await;
    Ok(())
}

fn warn_expired(prefix: &KeyPrefix) {
    eprintln!("this key has already expired; change it with: chancery key limits {prefix} --expires DATE");
}

/// Changes an account as the portal does, with an event in the account's history.
async fn change_key(store: &AdminStore, account_change: AccountChange) -> anyhow::Result<()> {
    let permit = Operator::new()?.authorize::<ManageAccounts>(store, FirmResource).await?;
    store.accounts.change_account(permit, account_change).await?;
    Ok(())
}

/// If the random prefix is already in use, generates another key.
pub async fn create_key(
    store: &AdminStore,
    account: Option<chancery_domain::AccountId>,
    label: String,
    limits: KeyLimits,
) -> anyhow::Result<ApiKey> {
    let operator = Operator::new()?;
    loop {
        let key = ApiKey::generate(&OsRandomness);
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: label.clone(),
            account,
            created_at: SystemClock.now(),
            limits: limits.clone(),
        };
        let permit = operator.authorize::<ManageAccounts>(store, FirmResource).await?;
        match store.accounts.change_account(permit, AccountChange::CreateKey(new)).await {
            Ok(_) => return Ok(key),
            Err(AccountError::KeyPrefixTaken(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn find(store: &AdminStore, typed: &str) -> anyhow::Result<KeyWithAccount> {
    let mut keys = store.account_lookup.list_keys().await?;
    let prefixes: Vec<&KeyPrefix> = keys.iter().map(|entry| &entry.key.prefix).collect();
    let index = resolve_prefix(&prefixes, typed)?;
    let found = keys.swap_remove(index);
    // A full key must match exactly, not only by prefix.
    match ApiKey::parse(typed) {
        Ok(whole) if !found.key.has_secret(&whole.hash()) => Err(AccountError::NoSuchKey.into()),
        _ => Ok(found),
    }
}

/// Returns the index of the key that the typed prefix identifies.
fn resolve_prefix(prefixes: &[&KeyPrefix], typed: &str) -> anyhow::Result<usize> {
    if typed.len() < MIN_PREFIX_CHARS {
        bail!("prefix too short; use at least {MIN_PREFIX_CHARS} characters (see `chancery key list`)");
    }
    let mut matches = (0..prefixes.len()).filter(|index| prefixes[*index].is_prefix_match(typed));
    match (matches.next(), matches.next()) {
        (Some(only), None) => Ok(only),
        (Some(one), Some(other)) => {
            bail!(
                "ambiguous prefix {typed}: matches {} and {}; use more characters",
                prefixes[one],
                prefixes[other]
            )
        }
        (None, _) => Err(AccountError::NoSuchKey.into()),
    }
}

/// The limits that are set, in one line.
fn limits_text(limits: &KeyLimits) -> String {
    let KeyLimits { requests_per_min, tokens_per_min, spend_per_month, models, expires_at } = limits;
    let set = [
        requests_per_min.map(|limit| format!("{} requests per minute", group_thousands(limit.into()))),
        tokens_per_min.map(|limit| format!("{} tokens per minute", group_thousands(limit.into()))),
        spend_per_month.map(|cap| format!("{cap} per month")),
        models.as_ref().map(|models| format!("models {models}")),
        expires_at.map(|at| format!("expires {}", at.to_iso())),
    ];
    let set: Vec<String> = set.into_iter().flatten().collect();
    if set.is_empty() { "no limits of its own".to_owned() } else { set.join(", ") }
}

#[derive(serde::Serialize)]
struct Row {
    prefix: String,
    label: String,
    account: Option<String>,
    state: &'static str,
    created_at: String,
    revoked_at: Option<String>,
    expires_at: Option<String>,
    last_used_at: Option<String>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    spend_per_month: Option<String>,
    models: Option<Vec<String>>,
}

fn print_list(keys: &[KeyWithAccount], json: bool) -> anyhow::Result<()> {
    let now = SystemClock.now();
    let row = |entry: &KeyWithAccount| {
        let closed = entry.account.as_ref().is_some_and(|account| account.state != AccountState::Open);
        Row {
            prefix: entry.key.prefix.to_string(),
            label: entry.key.label.clone(),
            account: entry.account.as_ref().map(|account| account.name.to_string()),
            state: match (entry.key.state, &entry.account) {
                (KeyState::Revoked { .. }, _) => "revoked",
                (KeyState::Active, _) if entry.key.limits.is_expired(now) => "expired",
                (KeyState::Active, None) => "unattached",
                (KeyState::Active, Some(_)) if closed => "account closed",
                (KeyState::Active, Some(_)) => "active",
            },
            created_at: entry.key.created_at.to_iso(),
            revoked_at: match entry.key.state {
                KeyState::Active => None,
                KeyState::Revoked { at } => Some(at.to_iso()),
            },
            expires_at: entry.key.limits.expires_at.map(UnixMillis::to_iso),
            last_used_at: entry.last_used_at.map(UnixMillis::to_iso),
            requests_per_minute: entry.key.limits.requests_per_min,
            tokens_per_minute: entry.key.limits.tokens_per_min,
            spend_per_month: entry.key.limits.spend_per_month.map(|cap| cap.to_string()),
            models: entry.key.limits.models.as_ref().map(|models| models.names().to_vec()),
        }
    };
    let rows: Vec<Row> = keys.iter().map(row).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let account = row.account.clone().unwrap_or_else(|| "(none)".to_owned());
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            row.prefix.clone(),
            account,
            row.label.clone(),
            row.state.to_owned(),
            row.created_at.clone(),
            or_dash(&row.expires_at),
            or_dash(&row.last_used_at),
        ]
    };
    print_table(
        &["PREFIX", "ACCOUNT", "LABEL", "STATE", "CREATED", "EXPIRES", "LAST USED"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_key_prefix_is_rejected() {
        let prefixes =
            ["ck_aaaabbbb", "ck_aaaacccc", "ck_dddddddd"].map(|text| KeyPrefix::from_stored(text.to_owned()));
        let prefixes: Vec<&KeyPrefix> = prefixes.iter().collect();
        assert_eq!(resolve_prefix(&prefixes, "ck_aaaac").unwrap(), 1);
        assert_eq!(resolve_prefix(&prefixes, "ck_dddddddd_andTheRestOfTheKey").unwrap(), 2);
        assert!(
            resolve_prefix(&prefixes, "ck_aaaa")
                .unwrap_err()
                .to_string()
                .contains("ambiguous prefix ck_aaaa")
        );
        assert!(resolve_prefix(&prefixes, "ck_").unwrap_err().to_string().contains("at least 5"));
        assert!(resolve_prefix(&prefixes, "ck_zzzz").unwrap_err().to_string().contains("no such key"));
    }
}
