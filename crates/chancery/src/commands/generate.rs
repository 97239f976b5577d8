//! `chancery generate`: a client of the API, for shells and scripts. The reply goes to standard output, everything else
//! to standard error.

use crate::cli::{Generate, GlobalArgs};
use crate::config::{Config, Loaded, scheme};
use crate::output::outln;
use crate::serve::local_url;
use crate::serve::tls::configured_certificate;
use anyhow::{Context, bail};
use chancery_http_client::OwnCertificates;
use serde_json::{Value, json};
use std::io::{IsTerminal, Read};
use std::time::Duration;

/// Slightly longer than the server's own time-out.
const REPLY_TIMEOUT: Duration = Duration::from_secs(660);

pub async fn run(global_args: &GlobalArgs, options: Generate) -> anyhow::Result<()> {
    let Ok(key) = std::env::var("CHANCERY_API_KEY") else {
        bail!("CHANCERY_API_KEY is not set; create a key with `chancery key create`");
    };
    let input = match options.input.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input as UTF-8")?;
            text
        }
        Some(text) => text.to_owned(),
        None => String::new(),
    };
    let mut body = json!({
        "model": options.model,
        "instructions": options.instructions,
        "input": input,
        "max_output_tokens": options.max_output_tokens,
    });
    options.reply_options.add_to(&mut body);
    let loaded = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref());
    let (url, config) = match options.url {
        // The configuration is that of the server's machine, and this may be another one.
        Some(url) => (url, loaded.ok().map(|loaded| loaded.config)),
        None => {
            let config = loaded?.config;
            (api_url(&config), Some(config))
        }
    };
    let (status, reply) = post(&url, &own_certificates(config.as_ref()), &key, &body).await?;
    let (Some(text), true) = (reply["output_text"].as_str(), status.is_success()) else {
        let part = |pointer: &str| reply.pointer(pointer).and_then(Value::as_str);
        let (Some(code), Some(reason)) = (part("/error/code"), part("/error/reason")) else {
            bail!("unexpected response from {url}: {status}; check CHANCERY_URL");
        };
        bail!("{status} {code}: {reason} ({})", part("/error/request_id").unwrap_or("no request ID"));
    };
    if options.json {
        outln!("{reply:#}");
        return Ok(());
    }
    outln!("{text}");
    if std::io::stderr().is_terminal() {
        let usage = &reply["usage"];
        let (stop, input, output) = (&reply["stop_reason"], &usage["input_tokens"], &usage["output_tokens"]);
        eprintln!("\n{} · {input} input tokens, {output} output tokens", stop.as_str().unwrap_or_default());
    }
    Ok(())
}

/// The API of this machine's configuration.
fn api_url(config: &Config) -> String {
    let local = || local_url(scheme(config.tls.api.as_ref()), config.api.listen);
    config.api.public_url.clone().unwrap_or_else(local)
}

/// The configured certificate is trusted, if it can be read.
fn own_certificates(config: Option<&Config>) -> OwnCertificates {
    let own_certificates = OwnCertificates::default();
    let certificate = config.and_then(|config| configured_certificate(config, config.tls.api.as_ref()?));
    if let Some(certificate) = certificate {
        own_certificates.trust("api", certificate);
    }
    own_certificates
}

async fn post(
    url: &str,
    own_certificates: &OwnCertificates,
    key: &str,
    body: &Value,
) -> anyhow::Result<(reqwest::StatusCode, Value)> {
    let builder = chancery_http_client::client_builder_trusting(own_certificates);
    let client = builder.timeout(REPLY_TIMEOUT).build();
    let client = client.context("cannot create the HTTP client")?;
    let address = format!("{}/v1/generate", url.trim_end_matches('/'));
    let response = client.post(&address).bearer_auth(key).json(body).send().await.with_context(|| {
        format!(
            "no response from {address}; check that the server is running and that CHANCERY_URL is correct"
        )
    })?;
    let status = response.status();
    let text = response.text().await.context("connection closed before the response was complete")?;
    let reply = serde_json::from_str(&text).with_context(|| {
        format!("{address} returned {status} without JSON; check that CHANCERY_URL is a Chancery server")
    })?;
    Ok((status, reply))
}
