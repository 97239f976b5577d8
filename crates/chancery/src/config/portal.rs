//! The `[portal]`, `[identity]`, `[auth]` and `[mail]` sections.

use super::bounds;
use super::drafting::{self, Drafting};
use super::identity;
use super::reader::Reader;
use super::source::Origin;
use super::{is_on_this_machine, listen, public_url};
use chancery_auth::SecondFactorPolicy;
use chancery_domain::{CompanyDomain, EmailAddress, SessionTimeouts, TimeZoneName, mask_url};
use chancery_mail::MailRoute;
use chancery_portal::{DEFAULT_PERSON_REQUESTS_PER_MIN, DirectoryRoles, SecondFactor, SignInRequirements};
use chancery_web::{ProxyNetwork, TrustedProxies};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug)]
pub struct Portal {
    pub listen: SocketAddr,
    /// `None`: derived from the bound port.
    pub public_url: Option<String>,
    pub company_domain: CompanyDomain,
    pub firm_name: String,
    /// For people who have not chosen one.
    pub time_zone: TimeZoneName,
    pub second_factor: SecondFactor,
    pub partners: Vec<EmailAddress>,
    pub session_times: SessionTimeouts,
    pub person_requests_per_min: u32,
    pub bind_session: bool,
    pub hsts_include_subdomains: bool,
    /// Applies to the portal and to the built-in identity provider.
    pub trusted_proxies: TrustedProxies,
    pub drafting: Drafting,
}

#[derive(Debug)]
pub struct Identity {
    /// `None`: the built-in provider, on the port that it listens on.
    pub issuer: Option<String>,
    pub client_id: String,
    pub client_secret_file: Option<PathBuf>,
    pub requirements: SignInRequirements,
    pub roles: Option<DirectoryRoles>,
    pub recheck_after: Option<Duration>,
}

/// The built-in identity provider.
#[derive(Debug)]
pub struct Auth {
    pub is_enabled: bool,
    pub listen: SocketAddr,
    pub second_factor: SecondFactorPolicy,
    pub hsts_include_subdomains: bool,
}

#[derive(Debug)]
pub struct Mail {
    pub route: MailRoute,
    pub from: EmailAddress,
}

const MIN: Duration = Duration::from_secs(60);
const H: u64 = 60;

/// Returns `None` after reporting a problem to the reader.
pub fn portal(reader: &mut Reader, folder: &Path) -> Option<Portal> {
    let listen = listen(reader, "portal.listen", 8081);
    let public_url = public_url(reader, "portal.public_url");
    check_public_url(reader, public_url.as_deref());
    let company_domain = parsed(reader, "portal.company_domain", "example.com");
    let firm_name = reader.text("portal.firm_name", "Chancery");
    if firm_name.chars().any(char::is_control) || firm_name.chars().count() > bounds::FIRM_NAME_CHARS {
        let max = bounds::FIRM_NAME_CHARS;
        reader.problem("portal.firm_name", format!("must be one line of at most {max} characters"));
    }
    let time_zone = parsed(reader, "portal.time_zone", "UTC");
    let second_factor = match reader.text("portal.second_factor", "none").as_str() {
        "none" => SecondFactor::None,
        "email-code" => SecondFactor::EmailCode,
        "provider" => SecondFactor::Provider,
        other => {
            reader.problem(
                "portal.second_factor",
                format!("unknown second factor {other:?}; use \"none\", \"email-code\" or \"provider\""),
            );
            SecondFactor::EmailCode
        }
    };
    let partners = partners(reader, company_domain.as_ref());
    let idle_min = reader.integer("portal.session_idle_min", 30, bounds::SESSION_IDLE_MIN);
    let max_h = reader.integer("portal.session_max_h", 12, bounds::SESSION_MAX_H);
    let minutes = |count: u64| MIN * u32::try_from(count).unwrap_or(u32::MAX);
    let session_times = SessionTimeouts { idle: minutes(idle_min), max: minutes(max_h * H) };
    let person_rpm = reader.integer(
        "portal.person_rpm",
        u64::from(DEFAULT_PERSON_REQUESTS_PER_MIN),
        bounds::PERSON_PER_MINUTE,
    );
    let bind_session = reader.boolean("portal.bind_session", false);
    let hsts_include_subdomains = reader.boolean("portal.hsts_include_subdomains", false);
    let trusted_proxies = trusted_proxies(reader);
    let drafting = drafting::drafting(reader, folder);
    Some(Portal {
        listen,
        public_url,
        company_domain: company_domain?,
        firm_name,
        time_zone: time_zone?,
        second_factor,
        partners,
        session_times,
        person_requests_per_min: u32::try_from(person_rpm).unwrap_or(u32::MAX),
        bind_session,
        hsts_include_subdomains,
        trusted_proxies,
        drafting,
    })
}

fn trusted_proxies(reader: &mut Reader) -> TrustedProxies {
    const KEY: &str = "portal.trusted_proxies";
    let mut networks: Vec<ProxyNetwork> = Vec::new();
    for text in reader.texts(KEY) {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(error) => reader.problem(KEY, format!("{text:?} {error}")),
        }
    }
    networks.into_iter().collect()
}

/// Sign-in needs an origin that browsers store its cookies for (TLS or localhost), and paths that start at the root.
fn check_public_url(reader: &mut Reader, url: Option<&str>) {
    const KEY: &str = "portal.public_url";
    let Some(url) = url else { return };
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    if host.contains(['/', '?', '#', '@']) {
        let url = mask_url(url);
        reader.problem(
            KEY,
            format!("invalid URL {url:?}: only a host and a port are allowed; the portal needs its own host"),
        );
    } else if url.starts_with("http://") && !is_on_this_machine(url) {
        reader.problem(
            KEY,
            format!(
                "{url:?} must be https://, because browsers drop session cookies without TLS; set [tls], or use a TLS proxy"
            ),
        );
    }
}

/// Partners must be in the company domain: nobody else can sign up.
fn partners(reader: &mut Reader, domain: Option<&CompanyDomain>) -> Vec<EmailAddress> {
    const KEY: &str = "portal.partners";
    let mut partners = Vec::new();
    for text in reader.texts(KEY) {
        match text.parse::<EmailAddress>() {
            Err(error) => reader.problem(KEY, format!("{text:?}: {error}")),
            Ok(address) if domain.is_some_and(|domain| !address.has_domain(domain)) => {
                reader
                    .problem(KEY, format!("{text:?} is not in portal.company_domain, so it cannot sign in"));
            }
            Ok(address) => partners.push(address),
        }
    }
    partners
}

pub fn identity(reader: &mut Reader, folder: &Path) -> Identity {
    const ISSUER: &str = "identity.issuer";
    // A trailing slash is part of the issuer: it must match the provider's own spelling.
    let issuer = reader.optional_text(ISSUER);
    if let Some(text) = &issuer {
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let is_address = host.is_some_and(|host| !host.is_empty() && !host.contains([' ', '?', '#']));
        if !is_address {
            let fix = "use the provider's exact issuer, such as \"https://id.example.com\"";
            reader.problem(ISSUER, format!("invalid issuer {:?}; {fix}", mask_url(text)));
        } else if text.starts_with("http://") && !is_on_this_machine(text) {
            reader.problem(ISSUER, "must be https:// for an identity provider on another machine");
        }
    }
    let client_id = reader.text("identity.client_id", "chancery-portal");
    let file = "identity.client_secret_file";
    let client_secret_file = reader.optional_text(file).map(PathBuf::from);
    let client_secret_file = match reader.origin(file) {
        Origin::File { .. } => client_secret_file.map(|path| folder.join(path)),
        _ => client_secret_file,
    };
    let requirements = identity::requirements(reader);
    let roles = identity::roles(reader);
    let recheck_min = reader.integer("identity.session_recheck_min", 0, bounds::SESSION_RECHECK_MIN);
    let recheck_after = (recheck_min > 0).then(|| MIN * u32::try_from(recheck_min).unwrap_or(u32::MAX));
    Identity { issuer, client_id, client_secret_file, requirements, roles, recheck_after }
}

/// `scheme` is that of the listener. An external issuer turns the built-in provider off unless it is enabled explicitly. In
/// that case the issuer is the built-in provider's own address behind a proxy.
pub fn auth(reader: &mut Reader, identity: &Identity, scheme: &str) -> Auth {
    let listen = listen(reader, "auth.listen", 8082);
    let is_own = identity.issuer.as_ref().is_none_or(|issuer| *issuer == format!("{scheme}://{listen}"));
    let is_enabled = reader.boolean("auth.enabled", is_own);
    if !is_enabled && identity.issuer.is_none() {
        let fix = "set it to your identity provider's URL, such as \"https://id.example.com\"";
        reader.problem("identity.issuer", format!("required when auth.enabled is false: {fix}"));
    }
    let second_factor = match reader.text("auth.second_factor", "optional").as_str() {
        "optional" => SecondFactorPolicy::Optional,
        "required" => SecondFactorPolicy::Required,
        other => {
            reader.problem(
                "auth.second_factor",
                format!("unknown value {other:?}; use \"optional\" or \"required\""),
            );
            SecondFactorPolicy::Required
        }
    };
    let hsts_include_subdomains = reader.boolean("auth.hsts_include_subdomains", false);
    Auth { is_enabled, listen, second_factor, hsts_include_subdomains }
}

pub fn mail(reader: &mut Reader, data: &Path, domain: Option<&CompanyDomain>) -> Option<Mail> {
    const SMTP: &str = "mail.smtp";
    let route = match reader.optional_text(SMTP).map(|url| MailRoute::smtp(&url)) {
        None => Some(MailRoute::Outbox(data.join("outbox"))),
        Some(Ok(route)) => {
            reader.show_as(SMTP, route.to_string());
            Some(route)
        }
        Some(Err(error)) => {
            // The URL may contain a password.
            reader.show_as(SMTP, "(invalid)".to_owned());
            reader.problem(SMTP, error);
            None
        }
    };
    let default = format!("chancery@{}", domain.map_or("example.com".to_owned(), CompanyDomain::to_string));
    let from = parsed(reader, "mail.from", &default);
    Some(Mail { route: route?, from: from? })
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    reader: &mut Reader,
    key: &str,
    default: &str,
) -> Option<T> {
    let text = reader.text(key, default);
    text.parse().map_err(|error| reader.problem(key, format!("{text:?}: {error}"))).ok()
}
