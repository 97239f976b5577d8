//! `kill -9` while alerts are found and sent. Every alert arrives, at least once, always with the same id and content; the
//! billing contact gets an email.

use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, eventually, request};
use crate::webhooks::{ALERT_TIMEOUT, Receiver, add_webhook};
use chancery_test_support::emails_in;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const KILLS_A_ROUND: u64 = 2;
const CONTACT: &str = "bills@hale.example";
const ACCOUNTS: [&str; 3] = ["Hale & Ward", "Ito Bakery", "North Quay"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_sends_every_alert_with_one_id() {
    rounds("kill -9 while alerts are sent", async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let firm = Firm::new().with("CHANCERY_WEBHOOKS__ALLOW_PRIVATE", "127.0.0.1");
    let keys = ACCOUNTS.map(|account| {
        let key = firm.account_with_key(account);
        firm.run(&["account", "limits", account, "--spend-per-month", "0.000001"]);
        firm.run(&["account", "billing", account, "--email", CONTACT]);
        key
    });
    let receiver = Receiver::start(204).await;
    add_webhook(&firm, &receiver.url);
    let mut server = firm.start();
    for _ in 0..KILLS_A_ROUND {
        receiver.reply_with(*draw.one_of(&[204, 500, 503]));
        // A killed server may lose the count of a rejection, so each server rejects again.
        for key in &keys {
            let rejected = server.generate(key, &request("", "Say hello.", 12)).await;
            assert_eq!((rejected.status, rejected.code()), (402, "spending_cap_reached"));
        }
        tokio::time::sleep(draw.pause(0..=20_000)).await;
        server.signal(rustix::process::Signal::KILL);
        server.wait();
        counts.add("kills", 1);
        server = firm.start();
    }
    receiver.reply_with(204);
    for key in &keys {
        assert_eq!(server.generate(key, &request("", "Say hello.", 12)).await.status, 402);
    }
    let ids_by_account = || {
        let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for event in receiver.events() {
            let account = event.body["data"]["account"].as_str().unwrap().to_owned();
            ids.entry(account).or_default().insert(event.id);
        }
        ids
    };
    // After several failures the next attempt is minutes away.
    eventually("every alert arrived", ALERT_TIMEOUT * 2, async || ids_by_account().len() == ACCOUNTS.len())
        .await;
    let ids = ids_by_account();
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    let mut contents: BTreeMap<String, Value> = BTreeMap::new();
    for event in receiver.events() {
        assert_eq!(event.body["type"], "spending.threshold");
        let data = &event.body["data"];
        assert_eq!(
            (&data["scope"], &data["cap"], &data["rejected"]),
            (&json!("account"), &json!("0.000001"), &json!(true))
        );
        let first = contents.entry(event.id).or_insert_with(|| event.body.clone());
        assert_eq!(*first, event.body);
    }
    eventually("the billing contact got an email", ALERT_TIMEOUT, async || {
        let emails = emails_in(&firm.data().join("outbox"));
        let is_alert = |email: &String| {
            email.contains(&format!("To: {CONTACT}")) && email.contains("rejected by its spending cap for")
        };
        emails.iter().any(is_alert)
    })
    .await;
    counts.add("alerts", ids.len());
    counts.add("deliveries", receiver.events().len());
}
