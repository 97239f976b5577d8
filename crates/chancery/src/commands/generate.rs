//! `chancery generate`: a client of the API, for shells and scripts. The reply goes to standard output, everything else
//! to standard error.

use crate::cli::Generate;
use crate::output::say;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read};
use std::time::Duration;

/// A little longer than the server allows itself.
const REPLY_TIMEOUT: Duration = Duration::from_secs(660);

pub async fn run(options: Generate) -> anyhow::Result<()> {
    let Ok(key) = std::env::var("CHANCERY_API_KEY") else {
        bail!("set CHANCERY_API_KEY to an API key; `chancery key create` makes one");
    };
    let input = match options.input.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input cannot be read as UTF-8")?;
            text
        }
        Some(text) => text.to_owned(),
        None => String::new(),
    };
    let body = json!({
        "model": options.model,
        "instructions": options.instructions,
        "input": input,
        "max_output_tokens": options.max_output_tokens,
    });
    let (status, reply) = post(&options.url, &key, &body).await?;
    let (Some(text), true) = (reply["output_text"].as_str(), status.is_success()) else {
        let part = |pointer: &str| reply.pointer(pointer).and_then(Value::as_str);
        let (Some(code), Some(reason)) = (part("/error/code"), part("/error/reason")) else {
            bail!("{} answered {status}, and not as Chancery does; is CHANCERY_URL right?", options.url);
        };
        bail!("{status} {code}: {reason} ({})", part("/error/request_id").unwrap_or("no request id"));
    };
    if options.json {
        say!("{reply:#}");
        return Ok(());
    }
    say!("{text}");
    if std::io::stderr().is_terminal() {
        let usage = &reply["usage"];
        let (stop, input, output) = (&reply["stop_reason"], &usage["input_tokens"], &usage["output_tokens"]);
        eprintln!("\n{} · {input} tokens in, {output} out", stop.as_str().unwrap_or_default());
    }
    Ok(())
}

async fn post(url: &str, key: &str, body: &Value) -> anyhow::Result<(reqwest::StatusCode, Value)> {
    let client = chancery_http_client::client_builder().timeout(REPLY_TIMEOUT).build();
    let client = client.context("the HTTP client cannot be set up")?;
    let address = format!("{}/v1/generate", url.trim_end_matches('/'));
    let response = client.post(&address).bearer_auth(key).json(body).send().await.with_context(|| {
        format!("no answer from {address}; is the server running, and is CHANCERY_URL right?")
    })?;
    let status = response.status();
    let text = response.text().await.context("the reply broke off")?;
    let reply = serde_json::from_str(&text).with_context(|| {
        format!("{address} answered {status} with something else than JSON; is it Chancery?")
    })?;
    Ok((status, reply))
}
