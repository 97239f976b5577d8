//! `chancery webhook`: receivers of alerts. `add` prints the secret once. Changes are audited with the operator as
//! principal.

use super::{IfMissing, open};
use crate::cli::{GlobalArgs, Webhook as Command};
use crate::operator::Operator;
use crate::output::{outln, print_json, print_table};
use anyhow::{Context, bail};
use chancery_alerts::{WebhookClient, generate_webhook_id, generate_webhook_secret, test_event};
use chancery_domain::{Clock, OsRandomness, SecretToken, SystemClock, UnixMillis, mask_url};
use chancery_policy::FirmResource;
use chancery_store::{AdminStore, ListedWebhook, Webhook};
use std::collections::HashMap;
use std::io::Write;

pub async fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    let if_missing = if matches!(command, Command::Add { .. }) { IfMissing::Create } else { IfMissing::Fail };
    let (config, store) = open(global_args, if_missing).await?;
    let admin = store.admin();
    let client = WebhookClient::new(config.webhooks.allow_private.clone());
    match command {
        Command::Add { url, json } => add(&admin, &client, url, json).await?,
        Command::List { json } => {
            let errors = admin.webhooks.webhook_errors().await?;
            print_list(&admin.webhooks.list_webhooks().await?, &errors, json)?;
        }
        Command::Remove { id } => {
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            admin.webhooks.remove_webhook(permit, &id).await?;
            outln!("webhook {id} removed");
        }
        Command::Test { id } => test(&admin, &client, &id).await?,
    }
    store.close().await;
    Ok(())
}

async fn add(store: &AdminStore, client: &WebhookClient, url: String, json: bool) -> anyhow::Result<()> {
    client.check_url(&url).with_context(|| format!("cannot add {}", mask_url(&url)))?;
    let webhook = Webhook {
        id: generate_webhook_id(&OsRandomness),
        url,
        secret: generate_webhook_secret(&OsRandomness),
        created_at: SystemClock.now(),
        disabled_at: None,
    };
    let operator = Operator::new()?;
    let permit = operator.authorize(store, FirmResource).await?;
    store.webhooks.add_webhook(permit, &webhook).await?;
    let (id, secret) = (webhook.id.as_str(), webhook.secret.reveal());
    let text = match json {
        true => serde_json::json!({ "id": id, "url": webhook.url, "secret": secret }).to_string(),
        false => format!("{id}\n{secret}"),
    };
    let printed = writeln!(std::io::stdout(), "{text}");
    if let Err(error) = printed {
        // Nobody could verify its events.
        let permit = operator.authorize(store, FirmResource).await?;
        store.webhooks.remove_webhook(permit, &webhook.id).await?;
        return Err(error).context("cannot print the secret, so the webhook was removed");
    }
    eprintln!("store the secret now: it is not shown again");
    if let Err(error) = client.check_host(&webhook.url).await {
        eprintln!("warning: events will not arrive: {error}");
    }
    Ok(())
}

async fn test(store: &AdminStore, client: &WebhookClient, id: &str) -> anyhow::Result<()> {
    let permit = Operator::new()?.authorize(store, FirmResource).await?;
    let webhook = store.webhooks.webhook_to_test(permit, id).await?;
    let now = SystemClock.now();
    let event_id = format!("evt_{}", SecretToken::generate(&OsRandomness).reveal());
    match client.send(&webhook, &event_id, &test_event(now), now).await {
        Ok(status) => outln!("test event {event_id} delivered: HTTP {status}"),
        Err(error) => bail!("test event {event_id} not delivered: {error}"),
    }
    Ok(())
}

#[derive(serde::Serialize)]
struct Row {
    id: String,
    url: String,
    state: &'static str,
    created_at: String,
    disabled_at: Option<String>,
    last_error: Option<String>,
}

fn print_list(
    webhooks: &[ListedWebhook],
    errors: &HashMap<String, String>,
    json: bool,
) -> anyhow::Result<()> {
    let row = |webhook: &ListedWebhook| Row {
        id: webhook.id.clone(),
        url: mask_url(&webhook.url),
        state: if webhook.disabled_at.is_some() { "disabled" } else { "active" },
        created_at: webhook.created_at.to_iso(),
        disabled_at: webhook.disabled_at.map(UnixMillis::to_iso),
        last_error: errors.get(&webhook.id).cloned(),
    };
    let rows: Vec<Row> = webhooks.iter().map(row).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let last_error = row.last_error.clone().unwrap_or_default();
        vec![row.id.clone(), row.url.clone(), row.state.to_owned(), row.created_at.clone(), last_error]
    };
    print_table(
        &["ID", "URL", "STATE", "CREATED", "LAST ERROR"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    Ok(())
}
