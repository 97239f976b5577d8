//! Accounts and keys that a partner manages in the portal take effect in the API of the running server within one second.

use crate::office::Office;
use crate::server::{eventually, request};
use chancery_domain::ApiKey;
use std::time::Duration;

/// The API caches a key for half a second.
const SOON: Duration = Duration::from_secs(1);

/// Returns the key shown on a page.
fn shown(page: &str) -> ApiKey {
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter_map(|word| ApiKey::parse(word).ok()).next().unwrap_or_else(|| panic!("no key in {page}"))
}

#[tokio::test]
async fn portal_key_generates_is_rate_limited_and_revoked_within_a_second() {
    let office = Office::open();
    let (ruth, server) = (office.sign_in("ruth").await, &office.server);
    let created = ruth.post("/accounts", &[("name", "Hale & Ward"), ("rpm", "60"), ("tpm", "60000")]).await;
    assert_eq!(created.status, 303, "{}", created.body);
    let account = created.location().split('?').next().unwrap().to_owned();
    let reply = ruth.post(&format!("{account}/keys"), &[("label", "backend")]).await;
    assert_eq!((reply.status.as_u16(), reply.headers["cache-control"].to_str().unwrap()), (200, "no-store"));
    let key = shown(&reply.body);
    assert!(
        reply.body.contains(&format!("{}/v1/generate", server.api.replace("127.0.0.1", "localhost"))),
        "{}",
        reply.body
    );

    let body = request("", "Say hello.", 1);
    let generated = server.generate(key.reveal(), &body).await;
    assert_eq!(generated.status, 200, "{}", generated.body);
    let page = ruth.page(&account).await.body;
    assert!(page.contains("today</time>"), "its last use: {page}");

    ruth.post(&format!("{account}/limits"), &[("rpm", "1"), ("tpm", "60000"), ("cap", "")]).await;
    eventually("the new limit refuses", SOON, async || {
        server.generate(key.reveal(), &body).await.status == 429
    })
    .await;
    let revoked = ruth.post(&format!("/accounts/keys/{}/revoke", key.prefix()), &[]).await;
    assert_eq!(revoked.status, 303, "{}", revoked.body);
    eventually("the revoked key is refused", SOON, async || {
        server.generate(key.reveal(), &body).await.status == 401
    })
    .await;

    let second = shown(&ruth.post(&format!("{account}/keys"), &[("label", "")]).await.body);
    ruth.post(&format!("{account}/close"), &[]).await;
    eventually("the closed account's key is refused", SOON, async || {
        server.generate(second.reveal(), &body).await.status == 402
    })
    .await;
    for place in [server.log(), office.server.stdout()] {
        assert!(!place.contains(key.reveal()) && !place.contains(second.reveal()), "a key is in the log");
    }
    let audit = ruth.page("/audit").await.body;
    let (_, secret) = key.reveal().rsplit_once('_').unwrap();
    assert!(!audit.contains(secret) && !ruth.page(&account).await.body.contains(secret));

    let listed = office.firm.json(&["account", "list", "--json"]);
    let find = |list: &serde_json::Value| {
        let mut accounts = list.as_array().unwrap().iter();
        accounts.find(|account| account["name"] == "Hale & Ward").unwrap().clone()
    };
    assert_eq!((find(&listed)["rpm"].as_u64(), find(&listed)["billing_email"].as_str()), (Some(1), Some("")));
    let address = "12 Harbour Lane\nBoston";
    office.firm.run(&[
        "account",
        "billing",
        "Hale & Ward",
        "--address",
        address,
        "--email",
        "bills@hale.example",
    ]);
    office.firm.run(&["account", "billing", "Hale & Ward", "--email", "new@hale.example"]);
    let account_now = find(&office.firm.json(&["account", "list", "--json"]));
    assert_eq!(
        (&account_now["billing_address"], &account_now["billing_email"]),
        (&address.into(), &"new@hale.example".into())
    );
    let page = ruth.page(&account).await.body;
    assert!(
        page.contains("12 Harbour Lane<br>Boston") && page.contains("Command line changed the billing email"),
        "{page}"
    );
    for wrong in
        [&["account", "billing", "Hale & Ward"][..], &["account", "billing", "Hale & Ward", "--email", "x"]]
    {
        office.firm.fail(wrong);
    }
}
