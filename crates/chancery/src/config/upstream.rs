//! The keys of a `[[models]]` table with `engine = "upstream"`: its servers and their time-outs.

use super::cleartext::{self, CleartextHop};
use super::reader::Reader;
use super::source::Origin;
use super::{bounds, host, is_on_this_machine};
use crate::secret_file;
use anyhow::Context;
use chancery_domain::mask_url;
use chancery_engine_upstream::{MAX_ENDPOINTS, Servers, Timeouts, TokenCounter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Keys that are only valid for upstream models.
pub(super) const KEYS: [&str; 10] = [
    "endpoints",
    "upstream_model",
    "api_key_file",
    "tokenizer",
    "connect_timeout_s",
    "first_token_timeout_s",
    "idle_timeout_s",
    "total_timeout_s",
    "hedge_after_s",
    "allow_cleartext",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Base URLs that end in `/v1`, without a trailing slash.
    pub endpoints: Vec<String>,
    /// The model name that the servers use.
    pub upstream_model: String,
    pub api_key_file: Option<PathBuf>,
    /// The model's `tokenizer.json`; `None`: trust the servers' token counts.
    pub tokenizer: Option<PathBuf>,
    /// `None`: ask the servers.
    pub context_tokens: Option<u32>,
    pub timeouts: Timeouts,
    /// How long to wait for the first text before hedging with a second server; `None`: never hedge.
    pub hedge_after: Option<Duration>,
}

impl UpstreamConfig {
    /// Returns the servers with the current contents of the key file.
    pub fn servers(&self) -> anyhow::Result<Servers> {
        let read = |path: &PathBuf| {
            secret_file::read(path).with_context(|| format!("api_key_file: cannot use {}", path.display()))
        };
        let api_key = self.api_key_file.as_ref().map(read).transpose()?;
        Ok(Servers { endpoints: self.endpoints.clone(), api_key })
    }

    pub fn token_counter(&self) -> anyhow::Result<Option<TokenCounter>> {
        let read = |path: &PathBuf| {
            TokenCounter::read(path).context("tokenizer: must be the model's tokenizer.json")
        };
        self.tokenizer.as_ref().map(read).transpose()
    }
}

/// Returns `None` after reporting a problem to the reader.
pub(super) fn upstream(
    reader: &mut Reader,
    folder: &Path,
    name: Option<&str>,
    key: impl Fn(&str) -> String,
) -> Option<UpstreamConfig> {
    let endpoints = endpoints(reader, &key("endpoints"));
    let upstream_model = reader.text(&key("upstream_model"), name.unwrap_or_default());
    let api_key_file = path(reader, folder, &key("api_key_file"));
    let tokenizer = path(reader, folder, &key("tokenizer"));
    check_cleartext(reader, &endpoints, api_key_file.is_some(), &key);
    let mut seconds = |name: &str, default: Duration, range| {
        Duration::from_secs(reader.integer(&key(name), default.as_secs(), range))
    };
    let default = Timeouts::default();
    let timeouts = Timeouts {
        connect: seconds("connect_timeout_s", default.connect, bounds::CONNECT_TIMEOUT_S),
        first_token: seconds("first_token_timeout_s", default.first_token, bounds::UPSTREAM_TIMEOUT_S),
        idle: seconds("idle_timeout_s", default.idle, bounds::UPSTREAM_TIMEOUT_S),
        total: seconds("total_timeout_s", default.total, bounds::UPSTREAM_TIMEOUT_S),
    };
    let hedge_after = reader.optional_integer(&key("hedge_after_s"), bounds::UPSTREAM_TIMEOUT_S);
    let endpoints = endpoints?;
    Some(UpstreamConfig {
        endpoints,
        upstream_model,
        api_key_file,
        tokenizer,
        context_tokens: None,
        timeouts,
        hedge_after: hedge_after.map(Duration::from_secs),
    })
}

fn endpoints(reader: &mut Reader, key: &str) -> Option<Vec<String>> {
    let problems = reader.problems.len();
    let given = reader.texts(key);
    let mut endpoints: Vec<String> = Vec::new();
    for text in &given {
        let url = text.trim_end_matches('/');
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let is_wrong =
            |host: &str| host.is_empty() || host.starts_with('/') || host.contains(char::is_whitespace);
        if host.is_none_or(is_wrong) {
            let url = mask_url(text);
            reader
                .problem(key, format!("invalid URL {url:?}; use a URL such as \"http://10.0.0.7:8000/v1\""));
        } else if url.contains(['?', '#', '@']) {
            // Text before an `@` may be a password, so the message does not repeat it.
            let fix = "use a URL such as \"http://10.0.0.7:8000/v1\", and put an API key in api_key_file";
            reader.problem(key, format!("a URL may not contain a query, fragment or credentials; {fix}"));
        } else if endpoints.iter().any(|known| known == url) {
            reader.problem(key, format!("duplicate URL {url:?}; remove one"));
        }
        endpoints.push(url.to_owned());
    }
    if given.is_empty() && reader.problems.len() == problems {
        let fix = "a list of base URLs ending in /v1, such as [\"http://10.0.0.7:8000/v1\"]";
        reader.problem(key, format!("required: {fix}"));
    }
    if given.len() > MAX_ENDPOINTS {
        reader.problem(key, format!("at most {MAX_ENDPOINTS} endpoints per model; use a load balancer"));
    }
    (reader.problems.len() == problems).then_some(endpoints)
}

/// Without a key, a server on another machine may be reached in clear text: model servers on a private network often have no TLS.
fn check_cleartext(
    reader: &mut Reader,
    endpoints: &Option<Vec<String>>,
    has_api_key: bool,
    key: &impl Fn(&str) -> String,
) {
    let section = key("");
    let section = section.trim_end_matches('.');
    let is_allowed = cleartext::is_allowed(reader, section);
    let is_readable = |url: &&String| url.starts_with("http://") && !is_on_this_machine(url);
    let readable = endpoints.iter().flatten().find(is_readable);
    if let (Some(url), true, false) = (readable, has_api_key, is_allowed) {
        let hop = CleartextHop {
            section,
            key: &key("endpoints"),
            host: host(url),
            secrets: "the API key and all prompts",
            fix: "use https://",
        };
        cleartext::reject(reader, &hop);
    }
}

/// A path in the configuration file is relative to its folder.
pub(super) fn path(reader: &mut Reader, folder: &Path, key: &str) -> Option<PathBuf> {
    let path = reader.optional_text(key).map(PathBuf::from)?;
    Some(match reader.origin(key) {
        Origin::File { .. } => folder.join(path),
        _ => path,
    })
}
