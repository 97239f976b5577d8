//! Where Hugging Face is, and the access token, both from the variables that its own clients read.

use crate::error::SourceError;
use reqwest::Url;
use std::fmt;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

#[derive(Clone)]
pub(crate) struct HuggingFace {
    pub endpoint: String,
    pub token: Option<String>,
}

impl HuggingFace {
    /// `HF_ENDPOINT` names a mirror; `HF_TOKEN` opens private and gated repositories.
    pub fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Self {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: variable("HF_TOKEN").map(|token| token.trim().to_owned()),
        }
    }

    /// The address of a file; all parts consist of characters that need no encoding, except `/` in a revision.
    pub fn url(&self, repository: &str, revision: &str, file: &str) -> Result<Url, SourceError> {
        let endpoint = self.endpoint.trim().trim_end_matches('/');
        let revision = revision.replace('/', "%2F");
        let url = Url::parse(&format!("{endpoint}/{repository}/resolve/{revision}/{file}"));
        url.ok().filter(|url| url.host_str().is_some()).ok_or_else(|| {
            SourceError::Connect(format!(
                "invalid HF_ENDPOINT {endpoint:?}; use a URL such as {DEFAULT_ENDPOINT}"
            ))
        })
    }

    /// Whether the token may go to this address, and whether its headers mean what Hugging Face's mean.
    pub fn serves(&self, url: &Url) -> bool {
        Url::parse(self.endpoint.trim()).is_ok_and(|endpoint| endpoint.origin() == url.origin())
    }
}

impl fmt::Debug for HuggingFace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HuggingFace")
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_address_follows_the_endpoint_and_hides_the_token() {
        let mirror = HuggingFace {
            endpoint: "https://mirror.example/hf/".to_owned(),
            token: Some("hf_secret".to_owned()),
        };
        let url = mirror.url("o/r", "refs/pr/1", "sub/f.gguf").unwrap();
        assert_eq!(url.as_str(), "https://mirror.example/hf/o/r/resolve/refs%2Fpr%2F1/sub/f.gguf");
        assert!(mirror.serves(&url) && !mirror.serves(&"https://other.example/f.gguf".parse().unwrap()));
        assert!(!format!("{mirror:?}").contains("secret"));
        let wrong = HuggingFace { endpoint: "mirror".to_owned(), token: None };
        assert!(wrong.url("o/r", "main", "f.gguf").unwrap_err().to_string().contains("HF_ENDPOINT"));
    }
}
