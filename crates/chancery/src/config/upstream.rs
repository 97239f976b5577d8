//! The keys of a `[[models]]` with `engine = "upstream"`: the servers that run it, and how long they may take.

use super::bounds;
use super::reader::Reader;
use super::source::Origin;
use crate::secret_file;
use anyhow::Context;
use chancery_engine_upstream::{MAX_ENDPOINTS, Servers, Timeouts, TokenCounter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Those that no other engine has.
pub(super) const KEYS: [&str; 9] = [
    "endpoints",
    "upstream_model",
    "api_key_file",
    "tokenizer",
    "connect_timeout_s",
    "first_token_timeout_s",
    "idle_timeout_s",
    "total_timeout_s",
    "hedge_after_s",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Each up to and with `/v1`, without a slash at the end.
    pub endpoints: Vec<String>,
    /// The servers' own name for the model.
    pub upstream_model: String,
    pub api_key_file: Option<PathBuf>,
    /// The model's `tokenizer.json`; None: the servers' counts are believed.
    pub tokenizer: Option<PathBuf>,
    /// None: asked of the servers.
    pub context_tokens: Option<u32>,
    pub timeouts: Timeouts,
    /// How long the first text may take before a second server is asked beside the first; None: none is.
    pub hedge_after: Option<Duration>,
}

impl UpstreamConfig {
    /// The servers with the key as its file has it now.
    pub fn servers(&self) -> anyhow::Result<Servers> {
        let read = |path: &PathBuf| {
            secret_file::read(path)
                .with_context(|| format!("api_key_file: {} cannot be used", path.display()))
        };
        let api_key = self.api_key_file.as_ref().map(read).transpose()?;
        Ok(Servers { endpoints: self.endpoints.clone(), api_key })
    }

    pub fn token_counter(&self) -> anyhow::Result<Option<TokenCounter>> {
        let read = |path: &PathBuf| {
            TokenCounter::read(path).context("tokenizer: it must be the model's tokenizer.json")
        };
        self.tokenizer.as_ref().map(read).transpose()
    }
}

/// None where something is wrong, which the reader has noted.
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
            reader.problem(
                key,
                format!("{text:?} is not a web address; write it as \"http://10.0.0.7:8000/v1\""),
            );
        } else if url.contains(['?', '#', '@']) {
            // What is before an @ is a password, which is not repeated.
            let fix = "write it as \"http://10.0.0.7:8000/v1\", and put a key into api_key_file";
            reader.problem(key, format!("an address has more than it may; {fix}"));
        } else if endpoints.iter().any(|known| known == url) {
            reader.problem(key, format!("{url:?} is there twice"));
        }
        endpoints.push(url.to_owned());
    }
    if given.is_empty() && reader.problems.len() == problems {
        let fix = "a list of addresses up to and with /v1, such as [\"http://10.0.0.7:8000/v1\"]";
        reader.problem(key, format!("it is needed: {fix}"));
    }
    if given.len() > MAX_ENDPOINTS {
        reader.problem(key, format!("a model can have {MAX_ENDPOINTS} at most; put a balancer in between"));
    }
    (reader.problems.len() == problems).then_some(endpoints)
}

fn path(reader: &mut Reader, folder: &Path, key: &str) -> Option<PathBuf> {
    let path = reader.optional_text(key).map(PathBuf::from)?;
    Some(match reader.origin(key) {
        Origin::File { .. } => folder.join(path),
        _ => path,
    })
}
