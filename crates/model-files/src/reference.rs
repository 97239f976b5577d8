//! What `chancery model pull` can be given: a name of the catalogue, a file of a Hugging Face repository, or a URL.

use crate::catalog::{self, CatalogModel};
use crate::name::ModelName;
use chancery_domain::is_loopback_host;
use reqwest::Url;
use std::fmt;
use std::str::FromStr;

/// Begins a file of a Hugging Face repository: `hf:OWNER/REPOSITORY/FILE.gguf@REVISION`.
const HUGGING_FACE_PREFIX: &str = "hf:";
const DEFAULT_REVISION: &str = "main";
const SYNTAX: &str = "hf:OWNER/REPOSITORY/FILE.gguf, optionally with @REVISION";

#[derive(Clone, Debug)]
pub enum ModelReference {
    Catalog(&'static CatalogModel),
    Remote(RemoteFile),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteFile {
    HuggingFace(HuggingFaceFile),
    Url(Url),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HuggingFaceFile {
    /// OWNER/REPOSITORY.
    pub repository: String,
    pub revision: String,
    /// Path inside the repository.
    pub file: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    #[error("unknown model {name}; available: {available}; or give {SYNTAX}, or a URL")]
    UnknownName { name: String, available: String },
    #[error("invalid Hugging Face file {0:?}; use {SYNTAX}")]
    HuggingFace(String),
    #[error("invalid URL {0:?}; use https://HOST/PATH/FILE.gguf, without user name and password")]
    Url(String),
    #[error("{0} is not encrypted; use https://, or allow it with `--allow-http`")]
    Cleartext(String),
    #[error(
        "{0} is one part of a model: merge the parts into one file with `llama-gguf-split --merge`, then run `chancery model import`"
    )]
    Split(String),
    #[error("the address does not end in a valid model name; choose one with `--name`")]
    NoName,
}

impl FromStr for ModelReference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        if let Some(file) = text.strip_prefix(HUGGING_FACE_PREFIX) {
            return Ok(Self::Remote(RemoteFile::HuggingFace(file.parse()?)));
        }
        if text.contains("://") {
            return Ok(Self::Remote(RemoteFile::Url(url(text)?)));
        }
        catalog::named(text).map(Self::Catalog).ok_or_else(|| {
            let names: Vec<&str> = catalog::ALL.iter().map(|known| known.name).collect();
            InvalidReference::UnknownName { name: text.to_owned(), available: names.join(", ") }
        })
    }
}

impl FromStr for HuggingFaceFile {
    type Err = InvalidReference;

    /// Without the prefix `hf:`.
    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let invalid = || InvalidReference::HuggingFace(text.to_owned());
        let (path, revision) = text.rsplit_once('@').unwrap_or((text, DEFAULT_REVISION));
        let mut parts = path.splitn(3, '/');
        let (Some(owner), Some(repository), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(invalid());
        };
        let has_segments = |text: &str| text.split('/').all(is_path_segment);
        let is_valid = is_path_segment(owner)
            && is_path_segment(repository)
            && has_segments(file)
            && has_segments(revision)
            && file.ends_with(".gguf");
        if !is_valid {
            return Err(invalid());
        }
        ensure_whole(file)?;
        Ok(Self {
            repository: format!("{owner}/{repository}"),
            revision: revision.to_owned(),
            file: file.to_owned(),
        })
    }
}

/// Characters that need no encoding in a URL, and no way up the path.
fn is_path_segment(segment: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    !segment.is_empty() && segment.bytes().all(is_allowed) && segment.bytes().any(|byte| byte != b'.')
}

fn url(text: &str) -> Result<Url, InvalidReference> {
    let invalid = || InvalidReference::Url(text.split(['?', '#']).next().unwrap_or_default().to_owned());
    let url = Url::parse(text).map_err(|_| invalid())?;
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() || has_credentials {
        // Without the password, which is not to be repeated.
        return Err(if has_credentials { InvalidReference::Url(url.scheme().to_owned()) } else { invalid() });
    }
    ensure_whole(file_name(&url))?;
    Ok(url)
}

/// Large models are published in files such as `model-00001-of-00003.gguf`, which the engine does not read.
fn ensure_whole(file: &str) -> Result<(), InvalidReference> {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let is_part = stem
        .rsplit_once("-of-")
        .and_then(|(first, count)| Some((first.rsplit_once('-')?.1, count)))
        .is_some_and(|(number, count)| is_number(number) && is_number(count));
    if is_part { Err(InvalidReference::Split(file.to_owned())) } else { Ok(()) }
}

fn file_name(url: &Url) -> &str {
    url.path().rsplit('/').next().unwrap_or_default()
}

/// Encrypted, or on this machine.
pub(crate) fn is_private(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && url.host_str().is_some_and(is_loopback_host))
}

impl RemoteFile {
    /// Rejects `http://` to other machines: whoever is on the way could replace the file.
    pub fn ensure_encrypted(&self) -> Result<(), InvalidReference> {
        match self {
            Self::Url(url) if !is_private(url) => Err(InvalidReference::Cleartext(self.to_string())),
            _ => Ok(()),
        }
    }

    /// The name of the file, without its ending.
    pub fn default_name(&self) -> Result<ModelName, InvalidReference> {
        let file = match self {
            Self::HuggingFace(file) => file.file.rsplit('/').next().unwrap_or_default(),
            Self::Url(url) => file_name(url),
        };
        let name = file.strip_suffix(".gguf").and_then(|name| name.parse().ok());
        name.ok_or(InvalidReference::NoName)
    }
}

impl fmt::Display for RemoteFile {
    /// Without the query, which may contain a signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HuggingFace(file) => write!(f, "{file}"),
            Self::Url(url) => write!(f, "{}", without_query(url)),
        }
    }
}

impl fmt::Display for HuggingFaceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HUGGING_FACE_PREFIX}{}/{}", self.repository, self.file)?;
        if self.revision == DEFAULT_REVISION { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

pub(crate) fn without_query(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> RemoteFile {
        match text.parse().unwrap() {
            ModelReference::Remote(file) => file,
            ModelReference::Catalog(model) => panic!("{text} is {}", model.name),
        }
    }

    #[test]
    fn references_name_a_catalogue_model_a_repository_file_or_a_url() {
        let known: ModelReference = "smollm2-135m".parse().unwrap();
        assert!(matches!(known, ModelReference::Catalog(model) if model.name == "smollm2-135m"));
        let file = remote("hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
        assert_eq!(file.default_name().unwrap().as_str(), "qwen2.5-coder-0.5b-instruct-q4_k_m");
        let pinned = remote("hf:o/r/sub/f.gguf@refs/pr/1");
        let RemoteFile::HuggingFace(pinned) = &pinned else { panic!("{pinned}") };
        assert_eq!((pinned.file.as_str(), pinned.revision.as_str()), ("sub/f.gguf", "refs/pr/1"));
        let url = remote("https://models.example/a/my.gguf?signature=secret");
        assert_eq!(url.to_string(), "https://models.example/a/my.gguf");
        assert_eq!(url.default_name().unwrap().as_str(), "my");
        assert_eq!(remote("https://models.example/").default_name(), Err(InvalidReference::NoName));
    }

    #[test]
    fn invalid_references_are_rejected_with_the_right_form() {
        let error = |text: &str| text.parse::<ModelReference>().unwrap_err().to_string();
        let unknown = error("smollm");
        assert!(unknown.contains("unknown model smollm; available: smollm2-135m, qwen"), "{unknown}");
        for text in [
            "hf:a",
            "hf:a/b",
            "hf:a/b/c",
            "hf:a/../c.gguf",
            "hf:a/b/c.gguf@",
            "hf:a/b/%2e.gguf",
            "hf://a/b.gguf",
        ] {
            assert!(error(text).contains("use hf:OWNER/REPOSITORY/FILE.gguf"), "{text}");
        }
        for text in ["ftp://models.example/a.gguf", "https:///", "https://user:secret@models.example/a.gguf"]
        {
            let error = error(text);
            assert!(error.contains("use https://HOST/PATH") && !error.contains("secret"), "{error}");
        }
        assert!(error("hf:a/b/c-00001-of-00003.gguf").contains("--merge"));
        assert!(error("https://models.example/c-00001-of-00003.gguf").contains("--merge"));
    }

    #[test]
    fn cleartext_is_only_for_this_machine() {
        assert!(remote("http://127.0.0.1:8000/a.gguf").ensure_encrypted().is_ok());
        assert!(remote("https://models.example/a.gguf").ensure_encrypted().is_ok());
        let error = remote("http://models.example/a.gguf").ensure_encrypted().unwrap_err().to_string();
        assert!(error.contains("--allow-http"), "{error}");
    }
}
