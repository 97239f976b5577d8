//! Selects the API that drafts letters for the portal: the configured one, or this process's own, for which it creates an
//! account and a key.
//!
//! The key is derived from a secret shared by all nodes on one database. So all nodes use one key in `chancery key list`,
//! a new node or an empty disk does not create another, and revoking it takes effect everywhere at once. After it was
//! revoked or has expired, the next start generates another secret and creates its key. Closing the account turns
//! drafting off for good.

use crate::config::{Config, scheme};
use crate::operator::Operator;
use crate::secret_file;
use anyhow::{Context, bail};
use chancery_domain::{
    AccountId, AccountName, AccountState, ApiKey, Clock, KeyLimits, KeyState, Randomness, RateLimits,
    SecretToken,
};
use chancery_policy::{FirmResource, ManageAccounts};
pub use chancery_portal::DRAFTING_ACCOUNT as ACCOUNT;
use chancery_portal::DraftingSettings;
use chancery_store::{AccountChange, AccountError, AdminStore, DbError, NewAccount, NewKey};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const KEY_LABEL: &str = "portal letter drafting";
/// Name of the first key's shared secret. The key after a revoked or expired one uses the name with the next number.
const SECRET: &str = "portal-drafting-key";
/// Each was revoked manually; so many revocations suggest that someone wants a different setup.
const MAX_KEYS: u32 = 1_000;
/// Enough for a firm that drafts all day; `chancery account limits` changes them.
const LIMITS: RateLimits = RateLimits { requests_per_min: 120, tokens_per_min: 1_000_000 };

/// Returns `None` if letters cannot be drafted; the log says why.
pub async fn settings(
    config: &Config,
    api: Option<SocketAddr>,
    store: &AdminStore,
    clock: &dyn Clock,
    randomness: &dyn Randomness,
) -> anyhow::Result<Option<DraftingSettings>> {
    let drafting = &config.portal.drafting;
    let Some(api_url) =
        drafting.api_url.clone().or_else(|| api.map(|api| own_url(scheme(config.tls.api.as_ref()), api)))
    else {
        tracing::warn!(
            "letter drafting disabled: this process runs no API, and portal.drafting.api_url is not set"
        );
        return Ok(None);
    };
    let api_key = match &drafting.api_key_file {
        Some(path) => {
            let read = secret_file::read(path);
            Some(
                read.with_context(|| format!("portal.drafting.api_key_file: cannot use {}", path.display()))?,
            )
        }
        None => own_key(store, clock, randomness).await?.map(|key| key.reveal().to_owned()),
    };
    let Some(api_key) = api_key else {
        tracing::warn!(
            "letter drafting disabled: account {ACCOUNT} is closed; set portal.drafting.api_key_file to a key of another account"
        );
        return Ok(None);
    };
    Ok(Some(DraftingSettings { api_url, api_key, model: drafting.model.clone() }))
}

/// Returns the URL at which this process reaches its own listener.
fn own_url(scheme: &str, address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

/// Returns the first of the portal's own keys that is valid, created if new. Returns `None` if its account is
/// closed.
async fn own_key(
    store: &AdminStore,
    clock: &dyn Clock,
    randomness: &dyn Randomness,
) -> anyhow::Result<Option<ApiKey>> {
    for number in 1..=MAX_KEYS {
        let name = if number == 1 { SECRET.to_owned() } else { format!("{SECRET}-{number}") };
        let secret = store.secrets.shared_secret(&name, &SecretToken::generate(randomness)).await?;
        let key = ApiKey::derive_from_secret(&secret);
        match state(store, clock, &key).await? {
            Some(KeyState::Active) => return Ok(Some(key)),
            Some(KeyState::Revoked { .. }) => continue,
            None => {}
        }
        let Some(account) = own_account(store, clock).await? else { return Ok(None) };
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: KEY_LABEL.to_owned(),
            account: Some(account),
            created_at: clock.now(),
            limits: KeyLimits::default(),
        };
        let permit = Operator::new()?.authorize::<ManageAccounts>(store, FirmResource).await?;
        match store.accounts.change_account(permit, AccountChange::CreateKey(new)).await {
            // Another node created it first. If instead another key has the same prefix, try the next number.
            Err(AccountError::KeyPrefixTaken(_))
                if state(store, clock, &key).await? != Some(KeyState::Active) => {}
            Ok(_) | Err(AccountError::KeyPrefixTaken(_)) => return Ok(Some(key)),
            Err(AccountError::AccountClosed(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    bail!(
        "{MAX_KEYS} portal keys were revoked or have expired; set portal.drafting.api_key_file to a key you created"
    )
}

/// Returns `None` if the store does not know the key. A different key with the same prefix, and an expired one, count
/// as revoked.
async fn state(store: &AdminStore, clock: &dyn Clock, key: &ApiKey) -> Result<Option<KeyState>, DbError> {
    let found = store.keys.key_by_prefix(&key.prefix()).await?.map(|entry| entry.key);
    Ok(found.map(|found| match (found.hash.matches(&key.hash()), found.limits.expires_at) {
        (false, _) => KeyState::Revoked { at: found.created_at },
        (true, Some(at)) if at <= clock.now() => KeyState::Revoked { at },
        (true, _) => found.state,
    }))
}

async fn own_account(store: &AdminStore, clock: &dyn Clock) -> anyhow::Result<Option<AccountId>> {
    let name: AccountName = ACCOUNT.parse()?;
    let account = match store.account_lookup.account_by_name(&name).await {
        Err(AccountError::NoSuchAccount(_)) => {
            let new = NewAccount { name: name.clone(), limits: LIMITS, created_at: clock.now() };
            let permit = Operator::new()?.authorize::<ManageAccounts>(store, FirmResource).await?;
            match store.accounts.change_account(permit, AccountChange::CreateAccount(new)).await {
                // Another node created it first.
                Ok(_) | Err(AccountError::AccountNameTaken(_)) => {
                    store.account_lookup.account_by_name(&name).await?
                }
                Err(error) => return Err(error.into()),
            }
        }
        found => found?,
    };
    Ok((account.state == AccountState::Open).then_some(account.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_listen_address_maps_to_loopback() {
        for (address, url) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:8080", "http://[::1]:8080"),
            ("10.0.0.7:8080", "http://10.0.0.7:8080"),
        ] {
            assert_eq!(own_url("http", address.parse().unwrap()), url);
        }
    }
}
