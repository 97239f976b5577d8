//! `--demo`: a demonstration firm in an empty data folder. How to reach it is kept in `DATA/demo.json` and printed at every
//! start. The file is written before what it tells of is made, so that a start that was cut off is finished by the next.

use super::demo_clients;
use super::drafting;
use super::people::{Addresses, Ground};
use crate::commands::{change_account, create_key};
use crate::config::Config;
use crate::data_folder::DataFolder;
use anyhow::{Context, bail};
use chancery_auth::add_account;
use chancery_domain::{
    AccountName, Clock, CompanyDomain, EmailAddress, EventOrigin, Identity, PersonId, RateLimits, Role,
    SecretToken, SystemClock,
};
use chancery_metering::{Authenticator, MeterError};
use chancery_store::{AccountDeed, AdminStore, Arrival, NewAccount, PersonError, Store};
use serde_json::json;
use std::fmt;
use std::sync::Arc;

const FILE: &str = "demo.json";
/// Where none is configured: it stands below the letters of its clients' records.
pub const FIRM_NAME: &str = "Marlow & Finch";
const ACCOUNT: &str = "Demo";
const LIMITS: RateLimits = RateLimits { requests_per_min: 6_000, tokens_per_min: 10_000_000 };
const PEOPLE: [(&str, Role); 3] =
    [("maya", Role::Consultant), ("omar", Role::Consultant), ("ruth", Role::Partner)];
/// Drawn letters of a password; at six bits a letter nobody guesses them, and they can still be typed.
const PASSWORD_CHARS: usize = 16;

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Demo {
    api_url: String,
    portal_url: String,
    auth_url: String,
    api_key: String,
    model: String,
    /// None where another's identity provider signs people in.
    users: Vec<User>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct User {
    email: String,
    password: String,
    role: String,
}

/// What of the file outlives a start; older files have less.
#[derive(Debug, serde::Deserialize)]
struct Earlier {
    api_key: String,
    #[serde(default)]
    users: Vec<User>,
}

/// What is printed at every start, with a line to paste.
impl fmt::Display for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_url, portal_url, auth_url, api_key, model, users } = self;
        writeln!(f, "\nThe demonstration firm is open.\n")?;
        writeln!(f, "  API      {api_url}\n  API key  {api_key}\n  model    {model}")?;
        writeln!(f, "  portal   {portal_url}\n  sign-in  {auth_url}\n")?;
        if !users.is_empty() {
            writeln!(f, "Open the portal in a browser and sign in as one of:\n")?;
            for User { email, password, role } in users {
                writeln!(f, "  {email}  {password}  ({role})")?;
            }
            writeln!(f)?;
        }
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
            "Try the API:\n\n\
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
    let earlier = earlier(data)?;
    let api_key = match &earlier {
        Some(earlier) => still_valid(&earlier.api_key, store).await?,
        None => None,
    };
    let api_key = match api_key {
        Some(key) => key,
        None => make_firm(data, &store.admin()).await?,
    };
    let earlier_users = earlier.map_or(Vec::new(), |earlier| earlier.users);
    let users = match config.auth.is_enabled {
        true => users(&config.portal.company_domain, &earlier_users, ground)?,
        false => Vec::new(),
    };
    // The addresses and the model may have changed since; the key and the passwords have not.
    let demo = Demo {
        api_url: api_url.to_owned(),
        portal_url: addresses.portal.clone(),
        auth_url: addresses.issuer.clone(),
        api_key,
        model: config.models[0].name.clone(),
        users,
    };
    data.write_private(FILE, &serde_json::to_vec_pretty(&demo)?)?;
    let mut people = Vec::new();
    for (user, (name, _)) in demo.users.iter().zip(PEOPLE) {
        people.extend(welcome(user, ground, &addresses.issuer).await?.map(|id| (name, id)));
    }
    // Clients belong to people; where one of these is gone, it is no longer the firm that they were written for.
    if people.len() == PEOPLE.len() {
        demo_clients::prepare(ground, &people).await?;
    }
    Ok(demo)
}

fn earlier(data: &DataFolder) -> anyhow::Result<Option<Earlier>> {
    let path = data.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    match serde_json::from_slice(&text) {
        Ok(earlier) => Ok(Some(earlier)),
        Err(_) => bail!(
            "{} is not what an earlier start wrote; remove it, and the next start makes a new key",
            path.display()
        ),
    }
}

async fn still_valid(api_key: &str, store: &Store) -> anyhow::Result<Option<String>> {
    let authenticator = Authenticator::new(Arc::new(store.metering()), Arc::new(SystemClock));
    match authenticator.authenticate(Some(api_key)).await {
        Ok(_) => Ok(Some(api_key.to_owned())),
        Err(MeterError::InvalidKey | MeterError::NoBillingAccount) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn make_firm(data: &DataFolder, store: &AdminStore) -> anyhow::Result<String> {
    let name: AccountName = ACCOUNT.parse()?;
    let mut accounts = store.account_lookup.list_accounts().await?;
    // The server's own is in every folder that was served from.
    accounts.retain(|account| account.name.as_str() != drafting::ACCOUNT);
    let account = match accounts.as_slice() {
        [] => {
            let new = NewAccount { name, limits: LIMITS, created_at: SystemClock.now() };
            change_account(store, AccountDeed::Make(new)).await?.0
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

/// The firm's people, with the passwords that they had at earlier starts.
fn users(domain: &CompanyDomain, earlier: &[User], ground: &Ground) -> anyhow::Result<Vec<User>> {
    let user = |(name, role): (&str, Role)| {
        let email = format!("{name}@{domain}").parse::<EmailAddress>()?.to_string();
        Ok(earlier.iter().find(|user| user.email == email).cloned().unwrap_or_else(|| {
            let drawn = SecretToken::generate(ground.randomness.as_ref());
            let password = drawn.reveal().chars().take(PASSWORD_CHARS).collect();
            User { email, password, role: role.to_string() }
        }))
    };
    PEOPLE.into_iter().map(user).collect()
}

/// Gives somebody a password at the identity provider and a place in the portal, if they have none yet. What was changed
/// about them since, a role or their removal, stands. None where they were removed.
async fn welcome(user: &User, ground: &Ground, issuer: &str) -> anyhow::Result<Option<PersonId>> {
    let store = ground.store.as_ref();
    let (email, role): (EmailAddress, Role) = (user.email.parse()?, user.role.parse()?);
    let account = match store.provider_accounts.provider_account_with_email(&email).await? {
        Some(account) => account,
        None => {
            let (randomness, clock) = (ground.randomness.as_ref(), ground.clock.as_ref());
            add_account(&store.provider(), randomness, clock, &email, &user.password).await?
        }
    };
    let identity = Identity { issuer: issuer.to_owned(), subject: account.subject };
    let known = store.people.people_with_email(&email).await?;
    if let Some(person) = known.iter().find(|person| person.identity == identity) {
        return Ok(Some(person.id));
    }
    let origin = EventOrigin::local(ground.clock.now(), ground.randomness.as_ref());
    match store.people.arrive(Arrival { identity, email, role, origin }).await {
        Ok(person) => Ok(Some(person.id)),
        Err(PersonError::PersonRemoved(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
