//! `--demo`: creates a demo firm in an empty data directory. Its URLs and credentials are stored in `DATA/demo.json` and
//! printed at every start. The file is written before the things it describes, so the next start completes an interrupted
//! one.

use super::Services;
use super::drafting;
use super::people::{Addresses, SharedDeps};
use super::{demo_clients, demo_history};
use crate::cli::PROFILE;
use crate::commands::{change_account, create_key};
use crate::config::{Config, ConfigError};
use crate::data_dir::DataDir;
use anyhow::{Context, bail};
use chancery_auth::add_account;
use chancery_domain::{
    AccountName, Clock, CompanyDomain, EmailAddress, EventOrigin, Identity, KeyLimits, PersonId, Profile,
    RateLimits, Role, SecretToken, SystemClock,
};
use chancery_metering::{Authenticator, MeterError};
use chancery_store::{AccountChange, AdminStore, NewAccount, PersonError, Store, VerifiedIdentity};
use serde_json::json;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

const FILE: &str = "demo.json";
/// Used if no name is configured. The letters in the demo records are signed with it.
pub const FIRM_NAME: &str = "Marlow & Finch";
/// On the invoices and letters of the demo if none is configured.
pub const LETTERHEAD: &str = "48 Commercial Wharf\nBoston, MA 02110\nbilling@marlowfinch.example";
pub const PAYMENT: &str = "By bank transfer to Marlow & Finch LLP, First Harbor Bank, account 000 123 456.";
const ACCOUNT: &str = "Demo";
const LIMITS: RateLimits = RateLimits { requests_per_min: 6_000, tokens_per_min: 10_000_000 };
/// The local part of the address, the name, and the role.
const PEOPLE: [(&str, &str, Role); 3] = [
    ("maya", "Maya Lindgren", Role::Consultant),
    ("omar", "Omar Haddad", Role::Consultant),
    ("ruth", "Ruth Marlow", Role::Partner),
];
/// Random characters per password. At six bits each they cannot be guessed, but can still be typed.
const PASSWORD_CHARS: usize = 16;

/// How much the demo creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoExtent {
    /// People, clients and a key: for tests that start many demos.
    Minimal,
    /// Also names, past usage and invoices, and a page with the email.
    Full,
}

#[derive(Clone, Copy, Debug)]
pub struct DemoOptions {
    pub extent: DemoExtent,
    /// Whether the model that drafts letters is downloaded and loaded.
    pub fetches_model: bool,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Demo {
    api_url: String,
    portal_url: String,
    auth_url: String,
    api_key: String,
    model: String,
    /// The page that shows the email of the demo. `None` if the portal does not run here, or a mail server is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    mail_url: Option<String>,
    /// Empty if an external identity provider signs people in.
    users: Vec<User>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct User {
    email: String,
    password: String,
    role: String,
}

/// The part of the file that is reused across starts; older files have fewer fields.
#[derive(Debug, serde::Deserialize)]
struct SavedDemo {
    api_key: String,
    #[serde(default)]
    users: Vec<User>,
}

/// The text printed at every start, with a command to paste.
impl fmt::Display for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_url, portal_url, auth_url, api_key, model, mail_url, users } = self;
        let hint =
            if PROFILE == "release" { "" } else { "; `make release` builds the faster one that is shipped" };
        writeln!(f, "\nThe demo firm is ready ({PROFILE} build{hint}).\n")?;
        writeln!(f, "  API      {api_url}\n  API key  {api_key}\n  model    {model}")?;
        writeln!(f, "  portal   {portal_url}\n  sign-in  {auth_url}")?;
        if let Some(mail_url) = mail_url {
            writeln!(f, "  email    {mail_url}")?;
        }
        writeln!(f)?;
        if !users.is_empty() {
            writeln!(f, "Open the portal in a browser and sign in as:\n")?;
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
        // Within single quotes a shell interprets nothing except the quote itself.
        let body = body.to_string().replace('\'', r"'\''");
        write!(
            f,
            "Try the API:\n\n\
             curl {api_url}/v1/generate \\\n  -H 'Authorization: Bearer {api_key}' \\\n  \
             -H 'Content-Type: application/json' \\\n  -d '{body}'\n\n"
        )
    }
}

/// The key and the passwords of the demo are printed and never change, so only this machine may reach it.
pub fn ensure_loopback(config: &Config, services: Services) -> Result<(), ConfigError> {
    let listeners = [
        (services.api, "api.listen", config.api.listen),
        (services.portal, "portal.listen", config.portal.listen),
        (services.auth, "auth.listen", config.auth.listen),
        (true, "ops.listen", config.ops.listen),
    ];
    let problem = |(is_served, key, address): (bool, &str, SocketAddr)| {
        let is_open = is_served && !address.ip().to_canonical().is_loopback();
        is_open.then(|| {
            let variable = format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
            format!(
                "{key}: {address} can be reached from other machines, and --demo serves only this one; set {key} (or {variable}) to 127.0.0.1:{}, or start without --demo",
                address.port()
            )
        })
    };
    let problems: Vec<String> = listeners.into_iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems)) }
}

/// Creates the firm, or loads the one that an earlier start created.
pub async fn prepare(
    data: &DataDir,
    config: &Config,
    deps: &SharedDeps,
    extent: DemoExtent,
    api_url: &str,
    addresses: &Addresses,
) -> anyhow::Result<Demo> {
    let store = &deps.store;
    let saved = read_saved(data)?;
    let api_key = match &saved {
        Some(saved) => still_valid(&saved.api_key, store).await?,
        None => None,
    };
    let api_key = match api_key {
        Some(key) => key,
        None => create_firm(data, &store.admin()).await?,
    };
    let saved_users = saved.map_or(Vec::new(), |saved| saved.users);
    let users = match config.auth.is_enabled {
        true => users(&config.portal.company_domain, &saved_users, deps)?,
        false => Vec::new(),
    };
    // The addresses and the model may have changed since the last start; the key and the passwords have not.
    let demo = Demo {
        api_url: api_url.to_owned(),
        portal_url: addresses.portal.clone(),
        auth_url: addresses.issuer.clone(),
        api_key,
        model: config.models[0].name.clone(),
        mail_url: deps.mailer.mail_page_url().map(str::to_owned),
        users,
    };
    data.write_owner_only(FILE, &serde_json::to_vec_pretty(&demo)?)?;
    let mut people = Vec::new();
    for (user, (local_part, name, _)) in demo.users.iter().zip(PEOPLE) {
        let name = (extent == DemoExtent::Full).then_some(name);
        let id = ensure_user(user, name, deps, &config.portal.firm_name, &addresses.issuer).await?;
        people.extend(id.map(|id| (local_part, id)));
    }
    // The demo clients need all of their owners, so skip them if one of the people was removed.
    if people.len() == PEOPLE.len() {
        demo_clients::prepare(deps, &people).await?;
    }
    if extent == DemoExtent::Full {
        demo_history::prepare(deps, config).await?;
    }
    Ok(demo)
}

fn read_saved(data: &DataDir) -> anyhow::Result<Option<SavedDemo>> {
    let path = data.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    match serde_json::from_slice(&text) {
        Ok(saved) => Ok(Some(saved)),
        Err(_) => bail!("{} is not valid; delete it, and the next start creates a new key", path.display()),
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

async fn create_firm(data: &DataDir, store: &AdminStore) -> anyhow::Result<String> {
    let name: AccountName = ACCOUNT.parse()?;
    let mut accounts = store.account_lookup.list_accounts().await?;
    // Every data directory that was served from has the server's own account, and a demo one with a past.
    accounts.retain(|account| ![drafting::ACCOUNT, demo_history::ACCOUNT].contains(&account.name.as_str()));
    let account = match accounts.as_slice() {
        [] => {
            let new = NewAccount { name, limits: LIMITS, created_at: SystemClock.now() };
            change_account(store, AccountChange::CreateAccount(new)).await?.0
        }
        // An interrupted start may have created the account but not the file.
        [only] if only.name == name => only.clone(),
        _ => bail!(
            "--demo needs an empty data directory, and {} already has accounts; start without --demo, or set another --data",
            data.path().display()
        ),
    };
    Ok(create_key(store, Some(account.id), "demo".to_owned(), KeyLimits::default())
        .await?
        .reveal()
        .to_owned())
}

/// Returns the firm's people, with their passwords from earlier starts.
fn users(domain: &CompanyDomain, saved: &[User], deps: &SharedDeps) -> anyhow::Result<Vec<User>> {
    let user = |(local_part, _, role): (&str, &str, Role)| {
        let email = format!("{local_part}@{domain}").parse::<EmailAddress>()?.to_string();
        Ok(saved.iter().find(|user| user.email == email).cloned().unwrap_or_else(|| {
            let token = SecretToken::generate(deps.randomness.as_ref());
            let password = token.reveal().chars().take(PASSWORD_CHARS).collect();
            User { email, password, role: role.to_string() }
        }))
    };
    PEOPLE.into_iter().map(user).collect()
}

/// Creates a provider account and a portal user for the person, if missing. Later changes, such as another role, name or
/// removal, are preserved. Returns `None` if the person was removed.
async fn ensure_user(
    user: &User,
    name: Option<&str>,
    deps: &SharedDeps,
    firm_name: &str,
    issuer: &str,
) -> anyhow::Result<Option<PersonId>> {
    let store = deps.store.as_ref();
    let (email, role): (EmailAddress, Role) = (user.email.parse()?, user.role.parse()?);
    let account = match store.provider_accounts.provider_account_by_email(&email).await? {
        Some(account) => account,
        None => {
            let (randomness, clock) = (deps.randomness.as_ref(), deps.clock.as_ref());
            add_account(&store.provider(), randomness, clock, firm_name, &email, &user.password).await?
        }
    };
    let identity = Identity { issuer: issuer.to_owned(), subject: account.subject };
    let known = store.people.people_by_email(&email).await?;
    if let Some(person) = known.iter().find(|person| person.identity == identity) {
        return Ok(Some(person.id));
    }
    let origin = EventOrigin::local(deps.clock.now(), deps.randomness.as_ref());
    let person = match store.people.sign_in(VerifiedIdentity { identity, email, role, origin }).await {
        Ok(person) => person.id,
        Err(PersonError::PersonRemoved(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if let Some(name) = name {
        let profile = Profile { name: Some(name.parse()?), time_zone: None };
        store.people.set_profile(person, &profile).await?;
    }
    Ok(Some(person))
}
