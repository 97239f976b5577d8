//! Upstream models: another Chancery with the same weights, and servers that break the protocol.

mod billing;
mod reload;
mod same_model;
pub mod tokenizer_file;

use crate::server::{Firm, Server, write_secret};
use std::path::Path;

/// Configuration of a firm's only model, an upstream one.
pub struct UpstreamModel<'a> {
    pub endpoints: &'a [&'a str],
    pub api_key: Option<&'a str>,
    pub tokenizer: Option<&'a Path>,
    /// More lines for the model's section.
    pub more: &'a str,
}

/// A firm with an upstream model.
pub fn firm_with(model: &UpstreamModel<'_>) -> Firm {
    let firm = Firm::without_a_model();
    write(&firm, model);
    firm
}

/// Writes or overwrites its configuration.
fn write(firm: &Firm, model: &UpstreamModel<'_>) {
    let mut text = format!(
        "[[models]]\nname = \"smollm2-135m\"\nengine = \"upstream\"\nendpoints = {:?}\n{}\n\
         input_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n",
        model.endpoints, model.more
    );
    if let Some(api_key) = model.api_key {
        write_secret(&firm.folder.path().join("upstream.key"), &format!("{api_key}\n"));
        text += "api_key_file = \"upstream.key\"\n";
    }
    if let Some(tokenizer) = model.tokenizer {
        text += &format!("tokenizer = {:?}\n", tokenizer.to_str().unwrap());
    }
    std::fs::write(firm.folder.path().join("chancery.toml"), text).unwrap();
}

/// The URL and state of each of the model's servers, from `/readyz`.
async fn endpoints(server: &Server) -> Vec<(String, String)> {
    let reply = crate::server::client().get(format!("{}/readyz", server.ops)).send().await.unwrap();
    let body: serde_json::Value = serde_json::from_str(&reply.text().await.unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let endpoints = body["endpoints"]["smollm2-135m"].as_array().unwrap();
    endpoints.iter().map(|endpoint| (text(&endpoint["url"]), text(&endpoint["state"]))).collect()
}
