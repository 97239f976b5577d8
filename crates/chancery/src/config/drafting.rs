//! `[portal.drafting]`: the generation API that drafts letters for the portal. If the section is missing, the portal uses
//! this process's own API, with an account and a key that the server creates.

use super::reader::Reader;
use super::source::Origin;
use super::{ModelConfig, is_on_this_machine, public_url};
use chancery_domain::mask_url;
use std::path::{Path, PathBuf};

const API_URL: &str = "portal.drafting.api_url";
const API_KEY_FILE: &str = "portal.drafting.api_key_file";
const MODEL: &str = "portal.drafting.model";

#[derive(Debug)]
pub struct Drafting {
    /// `None`: this process's own API.
    pub api_url: Option<String>,
    /// `None`: the server creates a key for its own API.
    pub api_key_file: Option<PathBuf>,
    /// `None`: the API's largest model.
    pub model: Option<String>,
}

pub fn drafting(reader: &mut Reader, folder: &Path) -> Drafting {
    let api_url = public_url(reader, API_URL);
    if let Some(url) = &api_url {
        if url.contains(['?', '#', '@']) {
            let fix = "use the base URL without /v1, such as \"https://api.example.com\"";
            reader.problem(API_URL, format!("invalid URL {:?}; {fix}", mask_url(url)));
        } else if url.ends_with("/v1") {
            reader.problem(API_URL, "remove /v1 from the end");
        } else if url.starts_with("http://") && !is_on_this_machine(url) {
            reader.problem(
                API_URL,
                "must be https:// for an API on another machine: API keys and client records are sent there",
            );
        }
    }
    let api_key_file = reader.optional_text(API_KEY_FILE).map(PathBuf::from);
    let api_key_file = match reader.origin(API_KEY_FILE) {
        Origin::File { .. } => api_key_file.map(|path| folder.join(path)),
        _ => api_key_file,
    };
    if api_url.is_some() && api_key_file.is_none() && reader.origin(API_KEY_FILE) == Origin::Default {
        let fix = "set it to a file with one line, an API key from `chancery key create`";
        reader.problem(API_KEY_FILE, format!("required when {API_URL} is set: {fix}"));
    }
    Drafting { api_url, api_key_file, model: reader.optional_text(MODEL) }
}

/// Checks the model name against this process's own models. Another server's models are unknown here.
pub fn check_model(reader: &mut Reader, drafting: &Drafting, models: &[ModelConfig]) {
    let (None, Some(name)) = (&drafting.api_url, &drafting.model) else { return };
    let names = || models.iter().map(|model| model.name.as_str());
    if models.is_empty() || names().any(|known| known == name) {
        return;
    }
    let hint = match chancery_domain::closest_match(name, names()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => {
            format!("available: {}", names().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "))
        }
    };
    reader.problem(MODEL, format!("unknown model {name:?}; {hint}"));
}
