//! Where the portal has its letters drafted: at the API that the configuration names, or at this process's own, which gets
//! an account for it and a key.
//!
//! The key is made of a secret that the nodes on one database share, so that all of them have one key in `chancery key
//! list`, a new node or an empty disk makes no other, and revoking it works everywhere at once. Revoking rotates: the next
//! start draws another secret and makes its key. Closing the account switches drafting off for good.

use crate::config::Config;
use crate::operator::Operator;
use crate::secret_file;
use anyhow::{Context, bail};
use chancery_domain::{
    AccountId, AccountName, AccountState, ApiKey, Clock, KeyState, Randomness, RateLimits, SecretToken,
};
use chancery_policy::{ManageAccounts, TheFirm};
pub use chancery_portal::DRAFTING_ACCOUNT as ACCOUNT;
use chancery_portal::DraftingSettings;
use chancery_store::{AccountDeed, AccountError, AdminStore, DbError, NewAccount, NewKey};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const KEY_LABEL: &str = "the portal's drafts of letters";
/// The shared secret of the first key; a key that was revoked is followed by the one of the next number.
const SECRET: &str = "portal-drafting-key";
/// Each was revoked by hand; whoever comes here has something else in mind.
const MAX_KEYS: u32 = 1_000;
/// For a firm that drafts all day; `chancery account limits` changes them.
const LIMITS: RateLimits = RateLimits { requests_per_min: 120, tokens_per_min: 1_000_000 };

/// None where letters cannot be drafted, which the log explains.
pub async fn settings(
    config: &Config,
    api: Option<SocketAddr>,
    store: &AdminStore,
    clock: &dyn Clock,
    randomness: &dyn Randomness,
) -> anyhow::Result<Option<DraftingSettings>> {
    let drafting = &config.portal.drafting;
    let Some(api_url) = drafting.api_url.clone().or_else(|| api.map(own_url)) else {
        tracing::warn!(
            "the portal drafts no letters: this process has no API of its own, and portal.drafting.api_url names none"
        );
        return Ok(None);
    };
    let api_key = match &drafting.api_key_file {
        Some(path) => {
            let read = secret_file::read(path);
            Some(read.with_context(|| {
                format!("portal.drafting.api_key_file: {} cannot be used", path.display())
            })?)
        }
        None => own_key(store, clock, randomness).await?.map(|key| key.reveal().to_owned()),
    };
    let Some(api_key) = api_key else {
        tracing::warn!(
            "the portal drafts no letters: the account {ACCOUNT} is closed; to draft again, set portal.drafting.api_key_file to a key of another account"
        );
        return Ok(None);
    };
    Ok(Some(DraftingSettings { api_url, api_key, model: drafting.model.clone() }))
}

/// How this process reaches its own listener.
fn own_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// The first of the portal's own keys that was not revoked, made if it is new. None where its account is closed.
async fn own_key(
    store: &AdminStore,
    clock: &dyn Clock,
    randomness: &dyn Randomness,
) -> anyhow::Result<Option<ApiKey>> {
    for number in 1..=MAX_KEYS {
        let name = if number == 1 { SECRET.to_owned() } else { format!("{SECRET}-{number}") };
        let secret = store.secrets.shared_secret(&name, &SecretToken::generate(randomness)).await?;
        let key = ApiKey::of_secret(&secret);
        match state(store, &key).await? {
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
        };
        let permit = Operator::new()?.ask::<ManageAccounts>(store, TheFirm).await?;
        match store.accounts.do_with_account(permit, AccountDeed::MakeKey(new)).await {
            // Another node was as quick, or a stranger's key has the same public part; then the next number serves.
            Err(AccountError::KeyPrefixTaken(_)) if state(store, &key).await? != Some(KeyState::Active) => {}
            Ok(_) | Err(AccountError::KeyPrefixTaken(_)) => return Ok(Some(key)),
            Err(AccountError::AccountClosed(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{MAX_KEYS} keys of the portal were revoked; set portal.drafting.api_key_file to a key of your own")
}

/// None where the store does not know the key. One with the same public part is not it, and as good as revoked.
async fn state(store: &AdminStore, key: &ApiKey) -> Result<Option<KeyState>, DbError> {
    let found = store.keys.key_with_prefix(&key.prefix()).await?.map(|owner| owner.key);
    Ok(found.map(|found| match found.hash.matches(&key.hash()) {
        true => found.state,
        false => KeyState::Revoked { at: found.created_at },
    }))
}

async fn own_account(store: &AdminStore, clock: &dyn Clock) -> anyhow::Result<Option<AccountId>> {
    let name: AccountName = ACCOUNT.parse()?;
    let account = match store.account_lookup.account_named(&name).await {
        Err(AccountError::NoSuchAccount(_)) => {
            let new = NewAccount { name: name.clone(), limits: LIMITS, created_at: clock.now() };
            let permit = Operator::new()?.ask::<ManageAccounts>(store, TheFirm).await?;
            match store.accounts.do_with_account(permit, AccountDeed::Make(new)).await {
                // Another node was as quick.
                Ok(_) | Err(AccountError::AccountNameTaken(_)) => {
                    store.account_lookup.account_named(&name).await?
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
    fn the_own_api_is_reached_on_this_machine() {
        for (listened, url) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:8080", "http://[::1]:8080"),
            ("10.0.0.7:8080", "http://10.0.0.7:8080"),
        ] {
            assert_eq!(own_url(listened.parse().unwrap()), url);
        }
    }
}
