//! `[portal.drafting]`: the generation API that drafts letters for the portal. Without any of it, that is this process's own
//! API, with an account and a key that the server makes for it.

use super::reader::Reader;
use super::source::Origin;
use super::{ModelConfig, is_on_this_machine, public_url};
use std::path::{Path, PathBuf};

const API_URL: &str = "portal.drafting.api_url";
const API_KEY_FILE: &str = "portal.drafting.api_key_file";
const MODEL: &str = "portal.drafting.model";

#[derive(Debug)]
pub struct Drafting {
    /// None: this process's own API.
    pub api_url: Option<String>,
    /// None: a key of the server's own making, for its own API.
    pub api_key_file: Option<PathBuf>,
    /// None: the first that the API offers.
    pub model: Option<String>,
}

pub fn drafting(reader: &mut Reader, folder: &Path) -> Drafting {
    let api_url = public_url(reader, API_URL);
    if let Some(url) = &api_url {
        if url.contains(['?', '#', '@']) {
            let fix = "write it as callers use it, without /v1, such as \"https://api.example.com\"";
            reader.problem(API_URL, format!("{url:?} has more than an address; {fix}"));
        } else if url.ends_with("/v1") {
            reader.problem(API_URL, "it is the address in front of /v1; leave /v1 out");
        } else if url.starts_with("http://") && !is_on_this_machine(url) {
            reader.problem(API_URL, "a key goes there, and clients' records; an API on another machine must have an https:// address");
        }
    }
    let api_key_file = reader.optional_text(API_KEY_FILE).map(PathBuf::from);
    let api_key_file = match reader.origin(API_KEY_FILE) {
        Origin::File { .. } => api_key_file.map(|path| folder.join(path)),
        _ => api_key_file,
    };
    if api_url.is_some() && api_key_file.is_none() && reader.origin(API_KEY_FILE) == Origin::Default {
        let fix = "name a file with one line, a key that `chancery key create` printed there";
        reader.problem(API_KEY_FILE, format!("it is needed where {API_URL} is set: {fix}"));
    }
    Drafting { api_url, api_key_file, model: reader.optional_text(MODEL) }
}

/// What this process's own API does not offer, it cannot draft with; which models another has, only that one knows.
pub fn check_model(reader: &mut Reader, drafting: &Drafting, models: &[ModelConfig]) {
    let (None, Some(name)) = (&drafting.api_url, &drafting.model) else { return };
    let names = || models.iter().map(|model| model.name.as_str());
    if models.is_empty() || names().any(|known| known == name) {
        return;
    }
    let hint = match chancery_domain::nearest(name, names()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => {
            format!("there is {}", names().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "))
        }
    };
    reader.problem(MODEL, format!("{name:?} is none of this server's models; {hint}"));
}
