//! `chancery.toml` and its `CHANCERY_SECTION__KEY` overrides, validated as a whole before anything starts. Every setting
//! has a default, so the file is optional. Paths in the file are relative to the file's directory.

mod billing;
mod checkpoints;
mod cleartext;
mod drafting;
#[cfg(test)]
mod fuzz;
mod identity;
mod models;
mod passwords;
mod portal;
mod reader;
mod secrets;
mod source;
mod tls;
mod upstream;
mod webhooks;

pub use billing::Billing;
pub use models::{EmbeddedConfig, EngineConfig, ModelConfig};
pub use portal::{Auth, Identity, Mail, Portal};
pub use reader::Setting;
pub use secrets::{KeyText, Secrets};
pub use tls::{AcmeConfig, CertificateFiles, Tls, TlsSource, scheme};
pub use upstream::UpstreamConfig;
pub use webhooks::Webhooks;

use chancery_domain::{InvoiceTerms, RateLimits, Seller, is_loopback_host, mask_url};
use chancery_metering::LimitStoreUrl;
use chancery_store::DatabaseUrl;
use chancery_transparency::Destinations;
use cleartext::CleartextHop;
use reader::Reader;
use source::{Entry, Origin, RawValue, Source};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Ranges of numeric settings.
mod bounds {
    use std::ops::RangeInclusive;

    pub const MAX_BODY_BYTES: RangeInclusive<u64> = 1_024..=64 * 1024 * 1024;
    /// An upper bound that only the type sets. Errors do not print it.
    pub const UNBOUNDED: u64 = u32::MAX as u64;
    pub const PER_MINUTE: RangeInclusive<u64> = 1..=UNBOUNDED;
    pub const CONTEXT_TOKENS: RangeInclusive<u64> = 16..=10_000_000;
    pub const SLOTS: RangeInclusive<u64> = 1..=chancery_engine_cpu::MAX_SLOTS as u64;
    pub const MODELS: usize = 64;
    /// Fewer would reject people who open pages quickly.
    pub const PERSON_PER_MINUTE: RangeInclusive<u64> = 60..=UNBOUNDED;
    pub const SESSION_IDLE_MIN: RangeInclusive<u64> = 1..=24 * 60;
    pub const SESSION_MAX_H: RangeInclusive<u64> = 1..=31 * 24;
    /// 0 is off.
    pub const SESSION_RECHECK_MIN: RangeInclusive<u64> = 0..=24 * 60;
    pub const FIRM_NAME_CHARS: usize = 80;
    /// What authorities put into one certificate.
    pub const ACME_DOMAINS: usize = 100;
    pub const CONNECT_TIMEOUT_S: RangeInclusive<u64> = 1..=60;
    /// Longer than any load balancer needs to notice, but short enough to wait for.
    pub const DRAIN_WAIT_S: RangeInclusive<u64> = 0..=300;
    /// The maximum duration of a request.
    pub const UPSTREAM_TIMEOUT_S: RangeInclusive<u64> =
        1..=chancery_engine_upstream::MAX_TOTAL_TIMEOUT.as_secs();
    pub const LETTERHEAD_CHARS: usize = 500;
    pub const PAYMENT_CHARS: usize = 1_000;
    /// Applies to the letterhead and to the payment instructions.
    pub const BILLING_LINES: usize = 12;
    pub const FONTS: usize = 8;
    pub const PAYMENT_DAYS: RangeInclusive<u64> = 0..=365;
    pub const TAX_NAME_CHARS: usize = 60;
}

const FILE_NAME: &str = "chancery.toml";

#[derive(Debug)]
pub struct Config {
    pub data: PathBuf,
    pub api: Api,
    pub portal: Portal,
    pub identity: Identity,
    pub auth: Auth,
    pub mail: Mail,
    pub ops: Ops,
    pub tls: Tls,
    pub database_url: DatabaseUrl,
    pub default_limits: RateLimits,
    pub limit_store: LimitStoreUrl,
    pub billing: Billing,
    pub secrets: Secrets,
    pub webhooks: Webhooks,
    /// Where signed checkpoints go besides `DATA/checkpoints`.
    pub checkpoints: Destinations,
    pub models: Vec<ModelConfig>,
}

impl Config {
    pub fn invoice_terms(&self) -> InvoiceTerms {
        let Billing { currency, letterhead, payment, payment_days, tax, .. } = &self.billing;
        let seller = Seller {
            name: self.portal.firm_name.clone(),
            letterhead: letterhead.clone(),
            payment: payment.clone(),
        };
        InvoiceTerms { currency: *currency, seller, tax: tax.clone(), payment_days: *payment_days }
    }
}

#[derive(Debug)]
pub struct Api {
    pub listen: SocketAddr,
    /// `None`: derived from the bound port.
    pub public_url: Option<String>,
    pub max_body_bytes: usize,
}

#[derive(Debug)]
pub struct Ops {
    pub listen: SocketAddr,
    /// How long to keep serving after the first shutdown signal, while `/readyz` reports that this node is shutting down.
    pub drain_wait: Duration,
}

/// A configuration and the origin of each setting.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    pub settings: Vec<Setting>,
}

/// Everything wrong with a configuration, one problem per line.
#[derive(Debug, thiserror::Error)]
#[error("invalid configuration:\n{}", .0.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl Loaded {
    /// Reads `file`, or `chancery.toml` in the current directory if it exists; `data` is the value of `--data`.
    pub fn read(file: Option<&Path>, data: Option<&Path>) -> Result<Self, ConfigError> {
        let mut source = Source::default();
        let mut folder = PathBuf::new();
        let path = file.unwrap_or(Path::new(FILE_NAME));
        if file.is_some() || path.exists() {
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError(vec![format!("cannot read {}: {error}", path.display())]))?;
            source.add_file(path, &text).map_err(|problem| ConfigError(vec![problem]))?;
            passwords::check_file(path, &source).map_err(|problem| ConfigError(vec![problem]))?;
            folder = path.parent().map(Path::to_owned).unwrap_or_default();
        }
        let mut variables = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            let not_text = || ConfigError(vec![format!("environment variable {name}: not valid UTF-8")]);
            if name.starts_with("CHANCERY_") {
                variables.push((name.clone(), value.into_string().map_err(|_| not_text())?));
            }
        }
        source.add_environment(variables);
        let data = match data.map(|data| data.to_str().ok_or(data)) {
            None => None,
            Some(Ok(data)) => Some(data),
            Some(Err(data)) => {
                return Err(ConfigError(vec![format!("--data {}: not valid UTF-8", data.display())]));
            }
        };
        Self::from_source(source, &folder, data)
    }

    /// Returns whether this key is unset.
    pub fn is_default(&self, key: &str) -> bool {
        let default = Origin::Default.to_string();
        self.settings.iter().any(|setting| setting.key == key && setting.origin == default)
    }

    fn from_source(mut source: Source, folder: &Path, data: Option<&str>) -> Result<Self, ConfigError> {
        if let Some(data) = data {
            let value = RawValue::Text(data.to_owned());
            source.entries.insert("data".to_owned(), Entry { value, origin: Origin::CommandLine });
        }
        let mut reader = Reader::new(source);
        let data = match (reader.text("data", "data"), reader.origin("data")) {
            (path, Origin::File { .. }) => folder.join(path),
            (path, _) => PathBuf::from(path),
        };
        let api = Api {
            listen: listen(&mut reader, "api.listen", 8080),
            public_url: public_url(&mut reader, "api.public_url"),
            max_body_bytes: reader.integer("api.max_body_bytes", 1_048_576, bounds::MAX_BODY_BYTES) as usize,
        };
        let tls = tls::tls(&mut reader, folder);
        tls::check_scheme(&mut reader, "api.public_url", api.public_url.as_deref(), tls.api.as_ref());
        let portal = portal::portal(&mut reader, folder);
        let portal_url = portal.as_ref().and_then(|portal| portal.public_url.as_deref());
        tls::check_scheme(&mut reader, "portal.public_url", portal_url, tls.portal.as_ref());
        let identity = portal::identity(&mut reader, folder);
        let auth = portal::auth(&mut reader, &identity, scheme(tls.auth.as_ref()));
        let mail = portal::mail(&mut reader, &data, portal.as_ref().map(|portal| &portal.company_domain));
        let ops = Ops {
            listen: listen(&mut reader, "ops.listen", 8083),
            drain_wait: Duration::from_secs(reader.integer("ops.drain_wait_s", 0, bounds::DRAIN_WAIT_S)),
        };
        let database_url = database_url(&mut reader, folder, &data);
        let per_minute = |reader: &mut Reader, key, default| {
            u32::try_from(reader.integer(key, default, bounds::PER_MINUTE)).unwrap_or(u32::MAX)
        };
        let default_limits = RateLimits {
            requests_per_min: per_minute(&mut reader, "limits.default_rpm", 60),
            tokens_per_min: per_minute(&mut reader, "limits.default_tpm", 60_000),
        };
        let limit_store = limit_store(&mut reader);
        let billing = billing::billing(&mut reader, folder);
        let secrets = secrets::secrets(&mut reader, folder);
        let webhooks = webhooks::webhooks(&mut reader);
        let checkpoints = checkpoints::checkpoints(&mut reader);
        let models = models::models(&mut reader, folder);
        if let Some(portal) = &portal {
            drafting::check_model(&mut reader, &portal.drafting, &models);
        }
        reader.report_unknown();
        let (Some(database_url), Some(portal), Some(mail), true) =
            (database_url, portal, mail, reader.problems.is_empty())
        else {
            return Err(ConfigError(reader.problems));
        };
        let config = Config {
            data,
            api,
            portal,
            identity,
            auth,
            mail,
            ops,
            tls,
            database_url,
            default_limits,
            limit_store,
            billing,
            secrets,
            webhooks,
            checkpoints,
            models,
        };
        let settings = reader.settings.into_iter().filter(|setting| setting.value.is_some()).collect();
        Ok(Self { config, settings })
    }
}

fn listen(reader: &mut Reader, key: &str, port: u16) -> SocketAddr {
    let default = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
    let text = reader.text(key, &default.to_string());
    text.parse().unwrap_or_else(|_| {
        reader.problem(key, format!("invalid address {text:?}; use IP:PORT, for example \"{default}\""));
        default
    })
}

fn public_url(reader: &mut Reader, key: &str) -> Option<String> {
    let text = reader.optional_text(key)?;
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if host.is_none_or(|host| host.is_empty() || host.starts_with('/') || host.contains(char::is_whitespace))
    {
        let url = mask_url(&text);
        reader.problem(key, format!("invalid URL {url:?}; use a URL such as \"https://api.example.com\""));
    }
    Some(text.trim_end_matches('/').to_owned())
}

/// Returns whether the host is a loopback address.
pub fn is_on_this_machine(url: &str) -> bool {
    is_loopback_host(host(url))
}

/// Returns the host of a URL without credentials; IPv6 addresses are in brackets.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.rsplit_once(':') {
        // The last colon of an address without a port is inside the brackets.
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    }
}

/// `DATA` at the start of a SQLite path expands to the data directory.
fn database_url(reader: &mut Reader, folder: &Path, data: &Path) -> Option<DatabaseUrl> {
    const KEY: &str = "database.url";
    let text = reader.text(KEY, "sqlite:DATA/chancery.db");
    let path = text.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path));
    let url = match path.filter(|path| !path.is_empty() && !path.contains(":memory:")) {
        Some(path) => {
            Ok(DatabaseUrl::sqlite_file(&match (Path::new(path).strip_prefix("DATA"), reader.origin(KEY)) {
                (Ok(inside), _) => data.join(inside),
                (Err(_), Origin::File { .. }) => folder.join(path),
                (Err(_), _) => PathBuf::from(path),
            }))
        }
        None => text.parse(),
    };
    let is_cleartext_allowed = cleartext::is_allowed(reader, "database");
    match url {
        Ok(url) => {
            reader.show_as(KEY, DatabaseUrl::to_string(&url));
            if let (Some(host), false) = (url.cleartext_host(), is_cleartext_allowed) {
                let hop = CleartextHop {
                    section: "database",
                    key: KEY,
                    host,
                    secrets: "the password and all records",
                    fix: "add ?sslmode=verify-full to the URL",
                };
                cleartext::reject(reader, &hop);
            }
            Some(url)
        }
        Err(error) => {
            reader.problem(KEY, error);
            None
        }
    }
}

fn limit_store(reader: &mut Reader) -> LimitStoreUrl {
    const KEY: &str = "limits.store";
    // The URL may contain a password, so neither the error nor the setting shows the text.
    let store = reader.text(KEY, "memory").parse().unwrap_or_else(|error| {
        reader.problem(KEY, error);
        LimitStoreUrl::Memory
    });
    reader.show_as(KEY, LimitStoreUrl::to_string(&store));
    let is_cleartext_allowed = cleartext::is_allowed(reader, "limits");
    if let (Some(host), false) = (store.cleartext_host(), is_cleartext_allowed) {
        let (secrets, fix) = ("the password and the limits of accounts", "use rediss://");
        cleartext::reject(reader, &CleartextHop { section: "limits", key: KEY, host, secrets, fix });
    }
    store
}

#[cfg(test)]
mod tests {
    use super::models::EmbeddedConfig;
    use super::*;

    fn read(text: &str, environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        let mut source = Source::default();
        source.add_file(Path::new("chancery.toml"), text).map_err(|problem| ConfigError(vec![problem]))?;
        source.add_environment(
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        Loaded::from_source(source, Path::new("etc"), None)
    }

    fn embedded(config: &Config) -> &EmbeddedConfig {
        match &config.models[0].engine {
            EngineConfig::Embedded(embedded) => embedded,
            EngineConfig::Upstream(_) => panic!("the first model is an upstream model"),
        }
    }

    fn problem(text: &str) -> String {
        read(text, &[]).expect_err(text).to_string()
    }

    #[test]
    fn checkpoints_go_only_to_valid_destinations() {
        let config = read(
            "[checkpoints]\nsyslog = \"udp://log.example.com:514\"\nwebhook = \"http://localhost:9/x\"",
            &[],
        );
        let Destinations { syslog, webhook } = config.unwrap().config.checkpoints;
        assert_eq!(syslog.unwrap().to_string(), "udp://log.example.com:514");
        assert_eq!(webhook.unwrap().as_str(), "http://localhost:9/x");
        for url in ["http://example.com/x", "ftp://example.com", "example.com"] {
            let found = problem(&format!("[checkpoints]\nwebhook = \"{url}\""));
            assert!(found.contains("checkpoints.webhook") && found.contains("https://"), "{found}");
        }
        let found = problem("[checkpoints]\nsyslog = \"log.example.com\"");
        assert!(found.contains("checkpoints.syslog") && found.contains("/dev/log"), "{found}");
    }

    #[test]
    fn defaults_apply_without_a_config_file() {
        let config = read("", &[]).unwrap().config;
        assert_eq!(config.api.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.database_url.to_string(), "sqlite:data/chancery.db");
        assert_eq!(config.models.len(), 1);
        assert_eq!(config.models[0].prices.output.to_string(), "0.40");
        assert_eq!(config.models[0].prices.cached_discount(), None);
    }

    #[test]
    fn cached_input_price_is_optional() {
        let text = "[[models]]\nname = \"smollm2-135m\"\ncached_input_per_million = \"0.025\"";
        let prices = read(text, &[]).unwrap().config.models[0].prices;
        assert_eq!(
            (prices.input.to_string(), prices.cached_input.to_string()),
            ("0.10".into(), "0.025".into())
        );
    }

    #[test]
    fn invoice_terms_come_from_the_configuration() {
        let terms = read("", &[]).unwrap().config.invoice_terms();
        assert_eq!((terms.payment_days, terms.tax, terms.currency.as_str()), (30, None, "USD"));
        let text = "[portal]\nfirm_name = \"Marlow & Finch\"\n[billing]\nletterhead = \"\"\"\n48 Commercial Wharf\n\
                    Boston\n\"\"\"\npayment = \"By transfer.\"\npayment_days = 0\ntax_name = \"Sales tax\"\ntax_percent = \"6.25\"\n";
        let terms = read(text, &[("CHANCERY_BILLING__PAYMENT_DAYS", "14")]).unwrap().config.invoice_terms();
        assert_eq!(terms.seller.name, "Marlow & Finch");
        assert_eq!(terms.seller.letterhead, "48 Commercial Wharf\nBoston");
        assert_eq!(terms.seller.payment, "By transfer.");
        assert_eq!(terms.payment_days, 14);
        assert_eq!(terms.tax, Some(("Sales tax".to_owned(), "6.25".parse().unwrap())));
    }

    #[test]
    fn fonts_that_cannot_be_used_are_named_with_their_key() {
        let billing = |text: &str, variables: &[(&str, &str)]| read(text, variables).unwrap().config.billing;
        assert!(billing("", &[]).pdf_fonts().is_ok());
        let missing = billing("[billing]\nfonts = [\"/nowhere/cjk.ttc\"]", &[]);
        let error = missing.pdf_fonts().unwrap_err().to_string();
        assert!(error.starts_with("billing.fonts: cannot read the font /nowhere/cjk.ttc"), "{error}");
        let several = billing("", &[("CHANCERY_BILLING__FONTS", "/nowhere/a.ttf, /nowhere/b.ttf")]);
        assert_eq!(several.fonts, [Path::new("/nowhere/a.ttf"), Path::new("/nowhere/b.ttf")]);
    }

    #[test]
    fn unknown_config_key_error_has_line_and_suggestion() {
        let error = problem("data = \"d\"\n\n[api]\nlistn = \"127.0.0.1:1\"\n");
        assert!(
            error.contains("chancery.toml line 4: api.listn: unknown key; did you mean api.listen?"),
            "{error}"
        );
    }

    #[test]
    fn invalid_config_value_error_has_line_and_fix() {
        for (text, expected) in [
            ("[api]\nlisten = \"here\"", "line 2: api.listen: invalid address \"here\""),
            ("[api]\nmax_body_bytes = -1", "line 2: api.max_body_bytes: must be an integer from 1024"),
            ("[api]\nmax_body_bytes = \"big\"", "line 2: api.max_body_bytes: must be an integer"),
            ("[billing]\ncurrency = \"dollars\"", "line 2: billing.currency"),
            (
                "[billing]\npayment_days = 366",
                "line 2: billing.payment_days: must be an integer from 0 to 365",
            ),
            (
                "[billing]\ntax_name = \"VAT\"",
                "billing.tax_percent: required when billing.tax_name is set, for example \"6.25\"",
            ),
            (
                "[billing]\ntax_percent = \"19\"",
                "billing.tax_name: required when billing.tax_percent is set, for example \"Sales tax\"",
            ),
            (
                "[billing]\ntax_name = \"VAT\"\ntax_percent = \"19 %\"",
                "line 3: billing.tax_percent: \"19 %\" is not a tax rate; write the percentage as a decimal",
            ),
            (
                "[billing]\ntax_name = \"\"\"\nVAT\nGST\"\"\"\ntax_percent = \"19\"",
                "line 2: billing.tax_name: the tax name must be one line",
            ),
            (
                "[billing]\nletterhead = \"a\\nb\\nc\\nd\\ne\\nf\\ng\\nh\\ni\\nj\\nk\\nl\\nm\"",
                "line 2: billing.letterhead: the letterhead has 13 lines; at most 12 allowed",
            ),
            ("[billing]\nfonts = \"cjk.ttc\"", "line 2: billing.fonts: must be a list of strings"),
            (
                "[billing]\npayment = \"a\\u202eb\"",
                "line 2: billing.payment: the payment instructions contains an invisible character (U+202E); remove it",
            ),
            ("[ops]\ndrain_wait_s = 301", "line 2: ops.drain_wait_s: must be an integer from 0 to 300"),
            ("[limits]\ndefault_rpm = 0", "line 2: limits.default_rpm: must be an integer, 1 or more"),
            (
                "[limits]\ndefault_rpm = 4294967296",
                "line 2: limits.default_rpm: too large; use a smaller number",
            ),
            ("[limits]\nstore = \"disk\"", "line 2: limits.store: must be \"memory\""),
            ("[limits]\nstore = \"redis://:secret@h:x\"", "line 2: limits.store: invalid Redis URL"),
            (
                "[database]\nurl = \"mysql://x\"",
                "line 2: database.url: unsupported database scheme \"mysql\"; a database URL is `sqlite:PATH`",
            ),
            (
                "[portal]\ncompany_domain = \"example\"",
                "line 2: portal.company_domain: \"example\": the part after `@`",
            ),
            (
                "[portal]\nsecond_factor = \"sms\"",
                "line 2: portal.second_factor: unknown second factor \"sms\"",
            ),
            ("[portal]\npartners = \"ruth@example.com\"", "line 2: portal.partners: must be a list"),
            (
                "[portal]\npartners = [\"ruth@evil.com\"]",
                "line 2: portal.partners: \"ruth@evil.com\" is not in portal.company_domain",
            ),
            (
                "[portal]\npublic_url = \"http://portal.lan\"",
                "line 2: portal.public_url: \"http://portal.lan\" must be https://",
            ),
            (
                "[portal]\npublic_url = \"https://x.example.com/p\"",
                "portal.public_url: invalid URL \"https://x.example.com/p\": only a host and a port are allowed",
            ),
            (
                "[portal]\ntrusted_proxies = [\"10.42.0.0/16\", \"10.42.1.0/16\"]",
                "line 2: portal.trusted_proxies: \"10.42.1.0/16\" has host bits set; use \"10.42.0.0/16\"",
            ),
            (
                "[portal]\ntrusted_proxies = [\"proxy\"]",
                "line 2: portal.trusted_proxies: \"proxy\" is not an IP address",
            ),
            ("[portal]\nsession_idle_min = 0", "line 2: portal.session_idle_min: must be an integer"),
            ("[portal]\nperson_rpm = 59", "line 2: portal.person_rpm: must be an integer, 60 or more"),
            (
                "[identity]\nissuer = \"id.example.com\"",
                "line 2: identity.issuer: invalid issuer \"id.example.com\"",
            ),
            (
                "[identity]\nissuer = \"http://id.example.com\"",
                "line 2: identity.issuer: must be https:// for an identity provider on another machine",
            ),
            (
                "[portal.drafting]\napi_url = \"https://api.example.com\"",
                "portal.drafting.api_key_file: required when portal.drafting.api_url is set",
            ),
            (
                "[portal.drafting]\napi_url = \"http://api.example.com\"\napi_key_file = \"k\"",
                "line 2: portal.drafting.api_url: must be https:// for an API on another machine",
            ),
            (
                "[portal.drafting]\napi_url = \"https://api.example.com/v1\"\napi_key_file = \"k\"",
                "line 2: portal.drafting.api_url: remove /v1 from the end",
            ),
            (
                "[portal.drafting]\napi_url = \"api.example.com\"\napi_key_file = \"k\"",
                "line 2: portal.drafting.api_url: invalid URL \"api.example.com\"",
            ),
            (
                "[portal.drafting]\nmodel = \"smollm-135m\"",
                "line 2: portal.drafting.model: unknown model \"smollm-135m\"; did you mean",
            ),
            ("[portal.drafting]\nmodl = \"x\"", "line 2: portal.drafting.modl: unknown key; did you mean"),
            ("[auth]\nenabled = \"maybe\"", "line 2: auth.enabled: must be true or false"),
            (
                "[auth]\nsecond_factor = \"always\"",
                "line 2: auth.second_factor: unknown value \"always\"; use \"optional\" or \"required\"",
            ),
            ("[auth]\nenabled = false", "identity.issuer: required when auth.enabled is false"),
            ("[mail]\nsmtp = \"mail.example.com\"", "line 2: mail.smtp: use `smtps://"),
            ("[mail]\nfrom = \"firm\"", "line 2: mail.from: \"firm\": an address has exactly one `@`"),
            (
                "[[models]]\nname = \"m\"\nfile = \"f\"\ninput_per_million = \"1\"\noutput_per_million = \"1\"",
                "line 5: models.0.output_per_million: output must cost more than input",
            ),
            (
                "[[models]]\nname = \"smollm2-135m\"\ncached_input_per_million = \"0.101\"",
                "line 3: models.0.cached_input_per_million: cached input is 0.101 and input is 0.10 per million tokens; \
                 lower it to at most the input price",
            ),
            (
                "[[models]]\nname = \"smollm2-135m\"\ncached_input_per_million = \"0.0101\"",
                "line 3: models.0.cached_input_per_million: \"0.0101\" is not a price; write it as a decimal string",
            ),
            (
                "[[models]]\nname = \"m\"\nfile = \"f\"\noutput_per_million = \"1\"",
                "models.0.input_per_million: required: the price per million tokens",
            ),
            (
                "[[models]]\nname = \"smollm2-135m\"\n[[models]]\nname = \"smollm2-135m\"",
                "models.1.name: duplicate model name \"smollm2-135m\"",
            ),
            (
                "[[models]]\nengine = \"gpu\"",
                "line 2: models.0.engine: unknown engine \"gpu\"; use \"embedded\"",
            ),
            (
                "[[models]]\nendpoints = [\"http://h/v1\"]",
                "line 2: models.0.endpoints: only valid with engine = \"upstream\"",
            ),
            (
                "[[models]]\nname = \"m\"\nengine = \"upstream\"\nfile = \"f\"",
                "line 4: models.0.file: only valid with engine = \"embedded\"",
            ),
            (
                "[[models]]\nname = \"m\"\nengine = \"upstream\"",
                "models.0.endpoints: required: a list of base URLs ending in /v1",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"h:8000/v1\"]",
                "models.0.endpoints: invalid URL \"h:8000/v1\"",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://k:s@h/v1\"]",
                "models.0.endpoints: a URL may not contain a query, fragment or credentials; use a URL",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://h/v1\", \"http://h/v1/\"]",
                "models.0.endpoints: duplicate URL \"http://h/v1\"",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://h/v1\"]\nname = \"smollm2-135m\"",
                "models.0.input_per_million: required: the price per million tokens",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://h/v1\"]\nidle_timeout_s = 0",
                "line 4: models.0.idle_timeout_s: must be an integer from 1 to 590",
            ),
            ("api = 5", "line 1: api: unknown key"),
            ("[foo]", "line 1: foo: unknown key"),
            ("[[foo]]", "line 1: foo.0: unknown key"),
            ("data = \"a\\u0000b\"", "line 1: data: must be a non-empty string"),
            ("[models]\nname = \"m\"", "line 2: models.name: must be a list of tables: write [[models]]"),
            ("[api\n", "chancery.toml line 1:"),
        ] {
            let error = problem(text);
            assert!(error.contains(expected), "{text}\n{error}");
        }
    }

    #[test]
    fn all_config_errors_are_reported_together() {
        let error =
            problem("[api]\nlisten = 5\nfoo = 1\nmax_body_bytes = \"x\"\n[ops]\nlisten = \"x\"\n[billing]\n");
        assert_eq!(error.lines().count(), 5, "{error}");
    }

    #[test]
    fn environment_overrides_the_config_file() {
        let text = "[api]\nlisten = \"127.0.0.1:1\"";
        let config = read(text, &[("CHANCERY_API__LISTEN", "127.0.0.1:2"), ("CHANCERY_URL", "http://x")])
            .unwrap()
            .config;
        assert_eq!(config.api.listen.port(), 2);
        let error = read("", &[("CHANCERY_API__LISTN", "x")]).unwrap_err().to_string();
        assert!(
            error.contains("environment variable CHANCERY_API__LISTN: api.listn: unknown key"),
            "{error}"
        );
        let config = read("", &[("CHANCERY_MODELS__0__SLOTS", "3")]).unwrap().config;
        assert_eq!((config.models[0].name.as_str(), embedded(&config).slots), ("smollm2-135m", Some(3)));
    }

    #[test]
    fn upstream_model_requires_name_endpoints_and_prices() {
        let text = "[[models]]\nname = \"large\"\nengine = \"upstream\"\nendpoints = [\"http://10.0.0.7:8000/v1/\", \"https://h/v1\"]\n\
            tokenizer = \"t.json\"\napi_key_file = \"k\"\nallow_cleartext = true\nidle_timeout_s = 5\ninput_per_million = \"1\"\noutput_per_million = \"2\"";
        let config = read(text, &[]).unwrap().config;
        let EngineConfig::Upstream(upstream) = &config.models[0].engine else {
            panic!("the model is embedded")
        };
        assert_eq!(upstream.endpoints, ["http://10.0.0.7:8000/v1", "https://h/v1"]);
        assert_eq!(upstream.upstream_model, "large");
        assert_eq!(upstream.tokenizer.as_deref(), Some(Path::new("etc/t.json")));
        assert_eq!(upstream.api_key_file.as_deref(), Some(Path::new("etc/k")));
        assert_eq!(upstream.timeouts.idle.as_secs(), 5);
        assert_eq!(upstream.timeouts.connect.as_secs(), 3);
    }

    #[test]
    fn drafting_works_unconfigured_and_accepts_another_api() {
        let own = read("[portal.drafting]\nmodel = \"smollm2-135m\"", &[]).unwrap().config.portal.drafting;
        assert_eq!((own.api_url, own.api_key_file), (None, None));
        assert_eq!(own.model.as_deref(), Some("smollm2-135m"));
        let text = "[portal.drafting]\napi_url = \"https://api.example.com/\"\napi_key_file = \"key\"";
        let other = read(text, &[]).unwrap().config.portal.drafting;
        assert_eq!(other.api_url.as_deref(), Some("https://api.example.com"));
        assert_eq!(other.api_key_file.as_deref(), Some(Path::new("etc/key")));
    }

    #[test]
    fn shown_settings_hide_passwords() {
        let text = "[database]\nurl = \"postgres://u:p%40ss@h/db?sslmode=require\"\n[limits]\nallow_cleartext = true\nstore = \"redis://u:p%40ss@h/2\"";
        let loaded = read(text, &[]).unwrap();
        for (key, shown) in [("database.url", "postgres://h:5432/db"), ("limits.store", "redis://h:6379/2")] {
            let setting = loaded.settings.iter().find(|setting| setting.key == key).unwrap();
            assert_eq!(setting.value.as_deref(), Some(shown));
        }
    }

    #[test]
    fn built_in_provider_is_disabled_for_a_foreign_issuer() {
        let is_enabled = |text: &str| read(text, &[]).unwrap().config.auth.is_enabled;
        assert!(is_enabled(""));
        assert!(is_enabled("[identity]\nissuer = \"http://127.0.0.1:8082\""));
        assert!(!is_enabled("[identity]\nissuer = \"https://id.example.com\""));
        assert!(is_enabled("[identity]\nissuer = \"https://id.example.com\"\n[auth]\nenabled = true"));
    }

    #[test]
    fn environment_lists_are_comma_separated() {
        let environment = [("CHANCERY_PORTAL__PARTNERS", "ruth@example.com, omar@example.com")];
        let config = read("", &environment).unwrap().config;
        assert_eq!(config.portal.partners.len(), 2);
    }

    #[test]
    fn config_paths_are_relative_to_the_config_file() {
        let loaded =
            read("data = \"d\"\n[[models]]\nname = \"smollm2-135m\"\nfile = \"m.gguf\"", &[]).unwrap();
        assert_eq!(loaded.config.data, Path::new("etc/d"));
        assert_eq!(embedded(&loaded.config).file, Path::new("etc/m.gguf"));
    }
}
