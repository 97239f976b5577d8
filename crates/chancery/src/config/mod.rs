//! `chancery.toml` and its `CHANCERY_SECTION__KEY` overrides, checked as a whole before anything starts. Defaults need no
//! file. Every path in the file is relative to the file's own folder.

mod billing;
mod drafting;
mod later;
mod models;
mod portal;
mod reader;
mod source;
mod upstream;

pub use billing::Billing;
pub use models::{EngineConfig, ModelConfig};
pub use portal::{Auth, Identity, Mail, Portal};
pub use reader::Setting;
pub use upstream::UpstreamConfig;

use chancery_domain::{InvoiceTerms, RateLimits, Seller};
use chancery_metering::LimitStoreUrl;
use chancery_store::DatabaseUrl;
use reader::Reader;
use source::{Entry, Origin, Raw, Source};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Ranges of the numbers in a configuration.
mod bounds {
    use std::ops::RangeInclusive;

    pub const MAX_BODY_BYTES: RangeInclusive<u64> = 1_024..=64 * 1024 * 1024;
    pub const PER_MINUTE: RangeInclusive<u64> = 1..=u32::MAX as u64;
    pub const CONTEXT_TOKENS: RangeInclusive<u64> = 16..=10_000_000;
    pub const SLOTS: RangeInclusive<u64> = 1..=chancery_engine_cpu::MAX_SLOTS as u64;
    pub const MODELS: usize = 64;
    pub const SESSION_IDLE_MIN: RangeInclusive<u64> = 1..=24 * 60;
    pub const SESSION_MAX_H: RangeInclusive<u64> = 1..=31 * 24;
    pub const FIRM_NAME_CHARS: usize = 80;
    pub const CONNECT_TIMEOUT_S: RangeInclusive<u64> = 1..=60;
    /// Longer than any balancer needs to notice, and short enough for whoever waits for the end.
    pub const DRAIN_WAIT_S: RangeInclusive<u64> = 0..=300;
    /// As long as a request may take at most.
    pub const UPSTREAM_TIMEOUT_S: RangeInclusive<u64> =
        1..=chancery_engine_upstream::MAX_TOTAL_TIMEOUT.as_secs();
    pub const LETTERHEAD_CHARS: usize = 500;
    pub const PAYMENT_CHARS: usize = 1_000;
    /// Of the letterhead, and of the text on how to pay.
    pub const BILLING_LINES: usize = 12;
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
    pub database_url: DatabaseUrl,
    pub default_limits: RateLimits,
    pub limit_store: LimitStoreUrl,
    pub billing: Billing,
    pub models: Vec<ModelConfig>,
}

impl Config {
    /// How invoices are made.
    pub fn invoice_terms(&self) -> InvoiceTerms {
        let Billing { currency, letterhead, payment, payment_days, tax } = &self.billing;
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
    /// None: made from the port that is listened on.
    pub public_url: Option<String>,
    pub max_body_bytes: usize,
}

#[derive(Debug)]
pub struct Ops {
    pub listen: SocketAddr,
    /// How long requests are still served after the first signal to end, while `/readyz` says that this node leaves.
    pub drain_wait: Duration,
}

/// A configuration with what is to be said about it.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    pub settings: Vec<Setting>,
}

/// Everything that is wrong with a configuration, a line each.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be used:\n{}", .0.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl Loaded {
    /// Reads `file`, or `chancery.toml` in the current folder if there is one; `data` is the command line's `--data`.
    pub fn read(file: Option<&Path>, data: Option<&Path>) -> Result<Self, ConfigError> {
        let mut source = Source::default();
        let mut folder = PathBuf::new();
        let path = file.unwrap_or(Path::new(FILE_NAME));
        if file.is_some() || path.exists() {
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError(vec![format!("{} cannot be read: {error}", path.display())]))?;
            source.add_file(path, &text).map_err(|problem| ConfigError(vec![problem]))?;
            folder = path.parent().map(Path::to_owned).unwrap_or_default();
        }
        let mut variables = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            let not_text =
                || ConfigError(vec![format!("environment variable {name}: it is not valid UTF-8")]);
            if name.starts_with("CHANCERY_") {
                variables.push((name.clone(), value.into_string().map_err(|_| not_text())?));
            }
        }
        source.add_environment(variables);
        let data = match data.map(|data| data.to_str().ok_or(data)) {
            None => None,
            Some(Ok(data)) => Some(data),
            Some(Err(data)) => {
                return Err(ConfigError(vec![format!("--data {}: it is not valid UTF-8", data.display())]));
            }
        };
        Self::from_source(source, &folder, data)
    }

    /// Whether nobody has set this key.
    pub fn is_default(&self, key: &str) -> bool {
        let default = Origin::Default.to_string();
        self.settings.iter().any(|setting| setting.key == key && setting.origin == default)
    }

    fn from_source(mut source: Source, folder: &Path, data: Option<&str>) -> Result<Self, ConfigError> {
        if let Some(data) = data {
            let value = Raw::Text(data.to_owned());
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
        let portal = portal::portal(&mut reader, folder);
        let identity = portal::identity(&mut reader, folder);
        let auth = portal::auth(&mut reader, &identity);
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
        let billing = billing::billing(&mut reader);
        let models = models::models(&mut reader, folder);
        if let Some(portal) = &portal {
            drafting::check_model(&mut reader, &portal.drafting, &models);
        }
        later::refuse(&mut reader);
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
            database_url,
            default_limits,
            limit_store,
            billing,
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
        reader.problem(
            key,
            format!("{text:?} is not an address; write it as IP:PORT, for example \"{default}\""),
        );
        default
    })
}

fn public_url(reader: &mut Reader, key: &str) -> Option<String> {
    let text = reader.optional_text(key)?;
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if host.is_none_or(|host| host.is_empty() || host.starts_with('/') || host.contains(char::is_whitespace))
    {
        reader
            .problem(key, format!("{text:?} is not a web address; write it as \"https://api.example.com\""));
    }
    Some(text.trim_end_matches('/').to_owned())
}

/// A host that only this machine reaches.
fn is_on_this_machine(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

/// `DATA` at the start of a SQLite path stands for the data folder.
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
    match url {
        Ok(url) => {
            reader.show_as(KEY, DatabaseUrl::to_string(&url));
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
    // The error says nothing of the text, which may hold a password, and neither may this.
    let store = reader.text(KEY, "memory").parse().unwrap_or_else(|error| {
        reader.problem(KEY, error);
        LimitStoreUrl::Memory
    });
    reader.show_as(KEY, LimitStoreUrl::to_string(&store));
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
            EngineConfig::Upstream(_) => panic!("the first model runs elsewhere"),
        }
    }

    fn problem(text: &str) -> String {
        read(text, &[]).expect_err(text).to_string()
    }

    #[test]
    fn the_defaults_need_no_file() {
        let config = read("", &[]).unwrap().config;
        assert_eq!(config.api.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.database_url.to_string(), "sqlite:data/chancery.db");
        assert_eq!(config.models.len(), 1);
        assert_eq!(config.models[0].prices.output.to_string(), "0.40");
    }

    #[test]
    fn what_stands_on_invoices_comes_from_the_configuration() {
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
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_key() {
        let error = problem("data = \"d\"\n\n[api]\nlistn = \"127.0.0.1:1\"\n");
        assert!(
            error.contains("chancery.toml line 4: api.listn: there is no such key; did you mean api.listen?"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_value_is_named_with_its_line_and_the_fix() {
        for (text, expected) in [
            ("[api]\nlisten = \"here\"", "line 2: api.listen: \"here\" is not an address"),
            ("[api]\nmax_body_bytes = -1", "line 2: api.max_body_bytes: it must be a whole number from 1024"),
            ("[api]\nmax_body_bytes = \"big\"", "line 2: api.max_body_bytes: it must be a whole number"),
            ("[billing]\ncurrency = \"dollars\"", "line 2: billing.currency"),
            (
                "[billing]\npayment_days = 366",
                "line 2: billing.payment_days: it must be a whole number from 0 to 365",
            ),
            (
                "[billing]\ntax_name = \"VAT\"",
                "billing.tax_percent: it is needed where billing.tax_name is set, for example \"6.25\"",
            ),
            (
                "[billing]\ntax_percent = \"19\"",
                "billing.tax_name: it is needed where billing.tax_percent is set, for example \"Sales tax\"",
            ),
            (
                "[billing]\ntax_name = \"VAT\"\ntax_percent = \"19 %\"",
                "line 3: billing.tax_percent: \"19 %\" is not a tax rate; write the percentage as a decimal",
            ),
            (
                "[billing]\ntax_name = \"\"\"\nVAT\nGST\"\"\"\ntax_percent = \"19\"",
                "line 2: billing.tax_name: the tax's name is one line; take the line breaks out",
            ),
            (
                "[billing]\nletterhead = \"a\\nb\\nc\\nd\\ne\\nf\\ng\\nh\\ni\\nj\\nk\\nl\\nm\"",
                "line 2: billing.letterhead: the letterhead has 13 lines; 12 at most",
            ),
            (
                "[billing]\npayment = \"a\\u202eb\"",
                "line 2: billing.payment: the text on how to pay has a character that cannot be shown (U+202E)",
            ),
            (
                "[ops]\ndrain_wait_s = 301",
                "line 2: ops.drain_wait_s: it must be a whole number from 0 to 300",
            ),
            ("[limits]\ndefault_rpm = 0", "line 2: limits.default_rpm"),
            ("[limits]\nstore = \"disk\"", "line 2: limits.store: limits are kept in \"memory\""),
            ("[limits]\nstore = \"redis://:secret@h:x\"", "line 2: limits.store: the Redis URL has a part"),
            (
                "[database]\nurl = \"mysql://x\"",
                "line 2: database.url: there is no database called \"mysql\" here; a database URL is `sqlite:PATH`",
            ),
            (
                "[portal]\ncompany_domain = \"example\"",
                "line 2: portal.company_domain: \"example\": after the `@`",
            ),
            (
                "[portal]\nsecond_factor = \"sms\"",
                "line 2: portal.second_factor: \"sms\" is no second factor",
            ),
            ("[portal]\npartners = \"ruth@example.com\"", "line 2: portal.partners: it must be a list"),
            (
                "[portal]\npartners = [\"ruth@evil.com\"]",
                "line 2: portal.partners: \"ruth@evil.com\" is not at",
            ),
            (
                "[portal]\npublic_url = \"http://portal.lan\"",
                "line 2: portal.public_url: \"http://portal.lan\" has no TLS",
            ),
            (
                "[portal]\npublic_url = \"https://x.example.com/p\"",
                "portal.public_url: \"https://x.example.com/p\" has more",
            ),
            (
                "[portal]\ntrusted_proxies = [\"10.42.0.0/16\", \"10.42.1.0/16\"]",
                "line 2: portal.trusted_proxies: \"10.42.1.0/16\" has bits behind the network's own; write it as \"10.42.0.0/16\"",
            ),
            (
                "[portal]\ntrusted_proxies = [\"proxy\"]",
                "line 2: portal.trusted_proxies: \"proxy\" is not an IP address",
            ),
            ("[portal]\nsession_idle_min = 0", "line 2: portal.session_idle_min: it must be a whole number"),
            (
                "[identity]\nissuer = \"id.example.com\"",
                "line 2: identity.issuer: \"id.example.com\" is not an",
            ),
            (
                "[identity]\nissuer = \"http://id.example.com\"",
                "line 2: identity.issuer: an identity provider on",
            ),
            (
                "[portal.drafting]\napi_url = \"https://api.example.com\"",
                "portal.drafting.api_key_file: it is needed where portal.drafting.api_url is set",
            ),
            (
                "[portal.drafting]\napi_url = \"http://api.example.com\"\napi_key_file = \"k\"",
                "line 2: portal.drafting.api_url: a key goes there",
            ),
            (
                "[portal.drafting]\napi_url = \"https://api.example.com/v1\"\napi_key_file = \"k\"",
                "line 2: portal.drafting.api_url: it is the address in front of /v1",
            ),
            (
                "[portal.drafting]\napi_url = \"api.example.com\"\napi_key_file = \"k\"",
                "line 2: portal.drafting.api_url: \"api.example.com\" is not a web address",
            ),
            (
                "[portal.drafting]\nmodel = \"smollm-135m\"",
                "line 2: portal.drafting.model: \"smollm-135m\" is none of this server's models; did you mean",
            ),
            (
                "[portal.drafting]\nmodl = \"x\"",
                "line 2: portal.drafting.modl: there is no such key; did you mean",
            ),
            ("[auth]\nenabled = \"maybe\"", "line 2: auth.enabled: it must be true or false"),
            ("[auth]\nenabled = false", "identity.issuer: it is needed where auth.enabled is false"),
            ("[mail]\nsmtp = \"mail.example.com\"", "line 2: mail.smtp: a mail server is `smtps://"),
            ("[mail]\nfrom = \"firm\"", "line 2: mail.from: \"firm\": an address has exactly one `@`"),
            ("[tls]\ncertificate = \"x\"", "line 2: tls.certificate: this version does not serve TLS"),
            (
                "[[models]]\nname = \"m\"\nfile = \"f\"\ninput_per_million = \"1\"\noutput_per_million = \"1\"",
                "line 5: models.0.output_per_million: output must cost more than input",
            ),
            (
                "[[models]]\nname = \"m\"\nfile = \"f\"\noutput_per_million = \"1\"",
                "models.0.input_per_million: a price per million tokens is needed",
            ),
            (
                "[[models]]\nname = \"smollm2-135m\"\n[[models]]\nname = \"smollm2-135m\"",
                "is the name of two models",
            ),
            (
                "[[models]]\nengine = \"gpu\"",
                "line 2: models.0.engine: \"gpu\" is no engine; it is \"embedded\"",
            ),
            (
                "[[models]]\nendpoints = [\"http://h/v1\"]",
                "line 2: models.0.endpoints: it goes with engine = \"upstream\"",
            ),
            (
                "[[models]]\nname = \"m\"\nengine = \"upstream\"\nfile = \"f\"",
                "line 4: models.0.file: it goes with engine = \"embedded\"",
            ),
            (
                "[[models]]\nname = \"m\"\nengine = \"upstream\"",
                "models.0.endpoints: it is needed: a list of addresses up to and with /v1",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"h:8000/v1\"]",
                "models.0.endpoints: \"h:8000/v1\" is not a web address",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://k:s@h/v1\"]",
                "models.0.endpoints: an address has more than it may; write it",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://h/v1\", \"http://h/v1/\"]",
                "models.0.endpoints: \"http://h/v1\" is there twice",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://h/v1\"]\nname = \"smollm2-135m\"",
                "models.0.input_per_million: a price per million tokens is needed",
            ),
            (
                "[[models]]\nengine = \"upstream\"\nendpoints = [\"http://h/v1\"]\nidle_timeout_s = 0",
                "line 4: models.0.idle_timeout_s: it must be a whole number from 1 to 590",
            ),
            ("api = 5", "line 1: api: there is no such key"),
            ("[foo]", "line 1: foo: there is no such key"),
            ("[[foo]]", "line 1: foo.0: there is no such key"),
            ("data = \"a\\u0000b\"", "line 1: data: it must be a text"),
            ("[models]\nname = \"m\"", "line 2: models.name: models are a list; write [[models]]"),
            ("[api\n", "chancery.toml line 1:"),
        ] {
            let error = problem(text);
            assert!(error.contains(expected), "{text}\n{error}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once_and_each_once() {
        let error =
            problem("[api]\nlisten = 5\nfoo = 1\nmax_body_bytes = \"x\"\n[ops]\nlisten = \"x\"\n[billing]\n");
        assert_eq!(error.lines().count(), 5, "{error}");
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let text = "[api]\nlisten = \"127.0.0.1:1\"";
        let config = read(text, &[("CHANCERY_API__LISTEN", "127.0.0.1:2"), ("CHANCERY_URL", "http://x")])
            .unwrap()
            .config;
        assert_eq!(config.api.listen.port(), 2);
        let error = read("", &[("CHANCERY_API__LISTN", "x")]).unwrap_err().to_string();
        assert!(
            error.contains("environment variable CHANCERY_API__LISTN: api.listn: there is no such key"),
            "{error}"
        );
        let config = read("", &[("CHANCERY_MODELS__0__SLOTS", "3")]).unwrap().config;
        assert_eq!((config.models[0].name.as_str(), embedded(&config).slots), ("smollm2-135m", Some(3)));
    }

    #[test]
    fn an_upstream_model_needs_a_name_endpoints_and_prices() {
        let text = "[[models]]\nname = \"large\"\nengine = \"upstream\"\nendpoints = [\"http://10.0.0.7:8000/v1/\", \"https://h/v1\"]\n\
            tokenizer = \"t.json\"\napi_key_file = \"k\"\nidle_timeout_s = 5\ninput_per_million = \"1\"\noutput_per_million = \"2\"";
        let config = read(text, &[]).unwrap().config;
        let EngineConfig::Upstream(upstream) = &config.models[0].engine else { panic!("it is embedded") };
        assert_eq!(upstream.endpoints, ["http://10.0.0.7:8000/v1", "https://h/v1"]);
        assert_eq!(upstream.upstream_model, "large");
        assert_eq!(upstream.tokenizer.as_deref(), Some(Path::new("etc/t.json")));
        assert_eq!(upstream.api_key_file.as_deref(), Some(Path::new("etc/k")));
        assert_eq!(upstream.timeouts.idle.as_secs(), 5);
        assert_eq!(upstream.timeouts.connect.as_secs(), 3);
    }

    #[test]
    fn drafting_needs_no_setting_and_takes_another_api() {
        let own = read("[portal.drafting]\nmodel = \"smollm2-135m\"", &[]).unwrap().config.portal.drafting;
        assert_eq!((own.api_url, own.api_key_file), (None, None));
        assert_eq!(own.model.as_deref(), Some("smollm2-135m"));
        let text = "[portal.drafting]\napi_url = \"https://api.example.com/\"\napi_key_file = \"key\"";
        let other = read(text, &[]).unwrap().config.portal.drafting;
        assert_eq!(other.api_url.as_deref(), Some("https://api.example.com"));
        assert_eq!(other.api_key_file.as_deref(), Some(Path::new("etc/key")));
    }

    #[test]
    fn a_password_is_never_shown() {
        let text =
            "[database]\nurl = \"postgres://u:p%40ss@h/db\"\n[limits]\nstore = \"redis://u:p%40ss@h/2\"";
        let loaded = read(text, &[]).unwrap();
        for (key, shown) in [("database.url", "postgres://h:5432/db"), ("limits.store", "redis://h:6379/2")] {
            let setting = loaded.settings.iter().find(|setting| setting.key == key).unwrap();
            assert_eq!(setting.value.as_deref(), Some(shown));
        }
    }

    #[test]
    fn the_built_in_provider_is_off_where_the_issuer_is_anothers() {
        let is_enabled = |text: &str| read(text, &[]).unwrap().config.auth.is_enabled;
        assert!(is_enabled(""));
        assert!(is_enabled("[identity]\nissuer = \"http://127.0.0.1:8082\""));
        assert!(!is_enabled("[identity]\nissuer = \"https://id.example.com\""));
        assert!(is_enabled("[identity]\nissuer = \"https://id.example.com\"\n[auth]\nenabled = true"));
    }

    #[test]
    fn a_list_in_the_environment_has_commas() {
        let environment = [("CHANCERY_PORTAL__PARTNERS", "ruth@example.com, omar@example.com")];
        let config = read("", &environment).unwrap().config;
        assert_eq!(config.portal.partners.len(), 2);
    }

    #[test]
    fn paths_in_the_file_are_relative_to_it() {
        let loaded =
            read("data = \"d\"\n[[models]]\nname = \"smollm2-135m\"\nfile = \"m.gguf\"", &[]).unwrap();
        assert_eq!(loaded.config.data, Path::new("etc/d"));
        assert_eq!(embedded(&loaded.config).file, Path::new("etc/m.gguf"));
    }
}
