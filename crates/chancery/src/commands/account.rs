//! `chancery account`: billing accounts.

use super::{IfMissing, open};
use crate::cli::{Account as Command, GlobalArgs};
use crate::operator::Operator;
use crate::output::{outln, print_json, print_table};
use anyhow::{Context, bail};
use chancery_domain::{
    Account, AccountId, AccountState, Clock, ContactEmail, Currency, RateLimits, SystemClock, group_thousands,
};
use chancery_mail::Recipient;
use chancery_policy::{FirmResource, ManageAccounts};
use chancery_store::{
    AccountChange, AccountSubject, AdminStore, BillingChange, BillingContact, LimitsChange, NewAccount,
};
use std::collections::HashMap;

pub async fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    let if_missing =
        if matches!(command, Command::Create { .. }) { IfMissing::Create } else { IfMissing::Fail };
    let (config, store) = open(global_args, if_missing).await?;
    let admin = store.admin();
    match command {
        Command::Create { name, limits } => {
            let limits = RateLimits {
                requests_per_min: limits.rpm.unwrap_or(config.default_limits.requests_per_min),
                tokens_per_min: limits.tpm.unwrap_or(config.default_limits.tokens_per_min),
            };
            let new = NewAccount { name, limits, created_at: SystemClock.now() };
            let account = change_account(&admin, AccountChange::CreateAccount(new)).await?.0;
            outln!(
                "account {} created: {}",
                account.name,
                describe_limits(&account, config.billing.currency)
            );
        }
        Command::List { json } => {
            let (accounts, billing) =
                (admin.account_lookup.list_accounts().await?, admin.account_lookup.billing_contacts().await?);
            print_list(&accounts, billing, config.billing.currency, json)?;
        }
        Command::Limits { name, limits, spend_per_month } => {
            let change = LimitsChange {
                requests_per_min: limits.rpm,
                tokens_per_min: limits.tpm,
                spend_per_month: spend_per_month.unwrap_or_default(),
            };
            let account = admin.account_lookup.account_by_name(&name).await?.id;
            let account = change_account(&admin, AccountChange::SetLimits { account, change }).await?.0;
            outln!("account {}: {}", account.name, describe_limits(&account, config.billing.currency));
        }
        Command::Billing { name, address, email } => {
            // Alerts are sent to it. An empty value removes it.
            if let Some(email) = email.as_ref().map(ContactEmail::as_str).filter(|email| !email.is_empty()) {
                email.parse::<Recipient>().with_context(|| format!("--email {email}"))?;
            }
            let account = admin.account_lookup.account_by_name(&name).await?.id;
            let account_change =
                AccountChange::SetBilling { account, change: BillingChange { address, email } };
            match change_account(&admin, account_change).await? {
                (account, true) => {
                    outln!(
                        "account {}: billing contact updated; it applies to future invoices",
                        account.name
                    );
                }
                (account, false) => outln!("account {}: no change", account.name),
            }
        }
        Command::Close { name } => {
            let account = admin.account_lookup.account_by_name(&name).await?.id;
            let account = change_account(&admin, AccountChange::Close(account)).await?.0;
            outln!("account {} closed; its keys stop working within one second", account.name);
        }
    }
    store.close().await;
    Ok(())
}

/// Changes an account as the portal does, with an event in the account's history. Returns the account and whether it changed.
pub async fn change_account(store: &AdminStore, change: AccountChange) -> anyhow::Result<(Account, bool)> {
    let permit = Operator::new()?.authorize::<ManageAccounts>(store, FirmResource).await?;
    let done = store.accounts.change_account(permit, change).await?;
    match done.subject {
        AccountSubject::Account(account) => Ok((account, done.event.is_some())),
        AccountSubject::Key(key) => bail!("internal: the change was applied to key {}", key.prefix),
    }
}

fn describe_limits(account: &Account, currency: Currency) -> String {
    let RateLimits { requests_per_min, tokens_per_min } = account.limits;
    let (requests, tokens) =
        (group_thousands(requests_per_min.into()), group_thousands(tokens_per_min.into()));
    let cap = account.spend_per_month.map(|cap| format!(", {cap} {currency} per month"));
    format!("{requests} requests and {tokens} tokens per minute{}", cap.unwrap_or_default())
}

#[derive(serde::Serialize)]
struct Row {
    id: i64,
    name: String,
    rpm: u32,
    tpm: u32,
    spend_per_month: Option<String>,
    billing_address: String,
    billing_email: String,
    created_at: String,
    closed_at: Option<String>,
}

fn print_list(
    accounts: &[Account],
    billing: Vec<(AccountId, BillingContact)>,
    currency: Currency,
    json: bool,
) -> anyhow::Result<()> {
    let billing: HashMap<AccountId, BillingContact> = billing.into_iter().collect();
    let of = |account: &Account, part: fn(&BillingContact) -> &str| {
        billing.get(&account.id).map_or_else(String::new, |contact| part(contact).to_owned())
    };
    let row = |account: &Account| Row {
        id: account.id.0,
        name: account.name.to_string(),
        rpm: account.limits.requests_per_min,
        tpm: account.limits.tokens_per_min,
        spend_per_month: account.spend_per_month.map(|cap| cap.to_string()),
        billing_address: of(account, |contact| contact.address.as_str()),
        billing_email: of(account, |contact| contact.email.as_str()),
        created_at: account.created_at.to_iso(),
        closed_at: match account.state {
            AccountState::Open => None,
            AccountState::Closed { at } => Some(at.to_iso()),
        },
    };
    let rows: Vec<Row> = accounts.iter().map(row).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let state = row.closed_at.as_ref().map_or("open".to_owned(), |at| format!("closed {at}"));
        let cap = row.spend_per_month.clone().unwrap_or_else(|| "none".to_owned());
        vec![row.name.clone(), group_thousands(row.rpm.into()), group_thousands(row.tpm.into()), cap, state]
    };
    let cap = format!("{currency} PER MONTH");
    print_table(&["NAME", "RPM", "TPM", &cap, "STATE"], &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}
