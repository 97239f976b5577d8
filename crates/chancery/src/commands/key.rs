//! `chancery key`: API keys. `create` prints the key alone on standard output, once.

use super::{Missing, open};
use crate::cli::{Key as Command, Place};
use crate::operator::Operator;
use crate::output::{print_json, print_table, say};
use anyhow::{Context, bail};
use chancery_domain::{AccountState, ApiKey, Clock, KeyPrefix, KeyState, OsRandomness, SystemClock};
use chancery_policy::{ManageAccounts, TheFirm};
use chancery_store::{AccountDeed, AccountError, AdminStore, KeyOwner, NewKey};
use std::io::Write;

/// Fewer typed characters would name a key by accident.
const MIN_TYPED_CHARS: usize = 5;

pub async fn run(place: &Place, command: Command) -> anyhow::Result<()> {
    let missing = if matches!(command, Command::Create { .. }) { Missing::Make } else { Missing::Refuse };
    let (_, store) = open(place, missing).await?;
    let admin = store.admin();
    match command {
        Command::Create { account, label } => {
            let account = match account {
                Some(name) => Some(admin.account_lookup.account_named(&name).await?.id),
                None => None,
            };
            let key = create_key(&admin, account, label).await?;
            if let Err(error) = writeln!(std::io::stdout(), "{}", key.reveal()) {
                // A key that nobody has seen must not stay valid.
                do_it(&admin, AccountDeed::RevokeKey(key.prefix())).await?;
                return Err(error).context("the key could not be printed, so it is revoked again");
            }
            if account.is_none() {
                eprintln!(
                    "this key bills no account yet; attach it with: chancery key attach {} --account NAME",
                    key.prefix()
                );
            }
        }
        Command::Attach { prefix, account } => {
            let key = find(&admin, &prefix).await?.key;
            let account = admin.account_lookup.account_named(&account).await?;
            let deed = AccountDeed::AttachKey { key: key.prefix.clone(), account: account.id };
            do_it(&admin, deed).await?;
            say!("key {} bills {}", key.prefix, account.name);
        }
        Command::List { json } => print_list(&admin.account_lookup.list_keys().await?, json)?,
        Command::Revoke { prefix } => {
            let key = find(&admin, &prefix).await?.key;
            do_it(&admin, AccountDeed::RevokeKey(key.prefix.clone())).await?;
            say!("key {} is revoked; it stops working within one second", key.prefix);
        }
    }
    store.close().await;
    Ok(())
}

/// As the portal does it, with its line in the account's history.
async fn do_it(store: &AdminStore, deed: AccountDeed) -> anyhow::Result<()> {
    let permit = Operator::new()?.ask::<ManageAccounts>(store, TheFirm).await?;
    store.accounts.do_with_account(permit, deed).await?;
    Ok(())
}

/// Two keys with the same public part are unlikely, not impossible; then another is drawn.
pub async fn create_key(
    store: &AdminStore,
    account: Option<chancery_domain::AccountId>,
    label: String,
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
        };
        let permit = operator.ask::<ManageAccounts>(store, TheFirm).await?;
        match store.accounts.do_with_account(permit, AccountDeed::MakeKey(new)).await {
            Ok(_) => return Ok(key),
            Err(AccountError::KeyPrefixTaken(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn find(store: &AdminStore, typed: &str) -> anyhow::Result<KeyOwner> {
    let mut keys = store.account_lookup.list_keys().await?;
    let prefixes: Vec<&KeyPrefix> = keys.iter().map(|owner| &owner.key.prefix).collect();
    let place = meant(&prefixes, typed)?;
    let found = keys.swap_remove(place);
    // Whoever pastes a whole key means that key, not another with the same prefix.
    match ApiKey::parse(typed) {
        Ok(whole) if !whole.hash().matches(&found.key.hash) => Err(AccountError::NoSuchKey.into()),
        _ => Ok(found),
    }
}

/// Which of the keys a person means.
fn meant(prefixes: &[&KeyPrefix], typed: &str) -> anyhow::Result<usize> {
    if typed.len() < MIN_TYPED_CHARS {
        bail!("give at least {MIN_TYPED_CHARS} characters of the key's prefix; `chancery key list` shows it");
    }
    let mut places = (0..prefixes.len()).filter(|place| prefixes[*place].is_meant_by(typed));
    match (places.next(), places.next()) {
        (Some(only), None) => Ok(only),
        (Some(one), Some(other)) => {
            bail!("{typed} could mean {} or {}; give more of the prefix", prefixes[one], prefixes[other])
        }
        (None, _) => Err(AccountError::NoSuchKey.into()),
    }
}

#[derive(serde::Serialize)]
struct Row {
    prefix: String,
    label: String,
    account: Option<String>,
    state: &'static str,
    created_at: String,
    revoked_at: Option<String>,
}

fn print_list(keys: &[KeyOwner], json: bool) -> anyhow::Result<()> {
    let row = |owner: &KeyOwner| {
        let closed = owner.account.as_ref().is_some_and(|account| account.state != AccountState::Open);
        Row {
            prefix: owner.key.prefix.to_string(),
            label: owner.key.label.clone(),
            account: owner.account.as_ref().map(|account| account.name.to_string()),
            state: match (owner.key.state, &owner.account) {
                (KeyState::Revoked { .. }, _) => "revoked",
                (KeyState::Active, None) => "unattached",
                (KeyState::Active, Some(_)) if closed => "account closed",
                (KeyState::Active, Some(_)) => "active",
            },
            created_at: owner.key.created_at.to_iso(),
            revoked_at: match owner.key.state {
                KeyState::Active => None,
                KeyState::Revoked { at } => Some(at.to_iso()),
            },
        }
    };
    let rows: Vec<Row> = keys.iter().map(row).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let account = row.account.clone().unwrap_or_else(|| "(none)".to_owned());
        vec![row.prefix.clone(), account, row.label.clone(), row.state.to_owned(), row.created_at.clone()]
    };
    print_table(
        &["PREFIX", "ACCOUNT", "LABEL", "STATE", "MADE"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_means_one_key_or_is_refused() {
        let prefixes =
            ["ck_aaaabbbb", "ck_aaaacccc", "ck_dddddddd"].map(|text| KeyPrefix::from_stored(text.to_owned()));
        let prefixes: Vec<&KeyPrefix> = prefixes.iter().collect();
        assert_eq!(meant(&prefixes, "ck_aaaac").unwrap(), 1);
        assert_eq!(meant(&prefixes, "ck_dddddddd_andTheRestOfTheKey").unwrap(), 2);
        assert!(meant(&prefixes, "ck_aaaa").unwrap_err().to_string().contains("could mean"));
        assert!(meant(&prefixes, "ck_").unwrap_err().to_string().contains("at least 5"));
        assert!(meant(&prefixes, "ck_zzzz").unwrap_err().to_string().contains("no such key"));
    }
}
