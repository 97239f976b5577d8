//! `serve --demo`.

use crate::browser::Browser;
use crate::server::{Firm, clean_command, file_mode};
use serde_json::Value;
use std::time::Duration;

fn pasted_curl(stdout: &str) -> String {
    let start = stdout.find("curl ").expect("a curl line is printed");
    stdout[start..].split("\n\n").next().unwrap().to_owned()
}

#[tokio::test]
async fn demo_curl_command_works_and_restarts_print_the_same_key() {
    let firm = Firm::new();
    let server = firm.start_with(&["--demo"]);
    crate::server::eventually("the curl line is printed", Duration::from_secs(5), async || {
        server.stdout().contains("curl ") && server.stdout().ends_with("\n\n")
    })
    .await;
    assert!(server.stdout().contains(concat!("ready (", env!("CHANCERY_PROFILE"), " build")));
    let output = clean_command("bash").args(["-c", &pasted_curl(&server.stdout())]).output().unwrap();
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(reply["output_text"].as_str().unwrap().contains("ledger"), "{reply}");
    assert_eq!(reply["usage"]["input_tokens"], 11);

    let file = firm.data().join("demo.json");
    assert_eq!(file_mode(&file), 0o600);
    let demo: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(demo["model"], "smollm2-135m");
    assert!(!server.log().contains("downloading the model for letters"), "tests run with --no-fetch");
    assert_eq!(demo["portal_url"], server.portal);
    assert_eq!(demo["auth_url"], server.auth);
    let users = demo["users"].as_array().unwrap().clone();
    let roles: Vec<_> = users.iter().map(|user| (&user["email"], &user["role"])).collect();
    assert_eq!(
        serde_json::json!(roles),
        serde_json::json!([
            ["maya@example.com", "consultant"],
            ["omar@example.com", "consultant"],
            ["ruth@example.com", "partner"],
        ])
    );
    assert!(users.iter().all(|user| server.stdout().contains(user["password"].as_str().unwrap())));
    let key = demo["api_key"].as_str().unwrap().to_owned();
    let limits = firm.json(&["account", "list", "--json"]);
    assert_eq!((limits[0]["rpm"].as_u64(), limits[0]["tpm"].as_u64()), (Some(6_000), Some(10_000_000)));

    drop(server);
    let server = firm.start_with(&["--demo"]);
    crate::server::eventually("the key is printed again", Duration::from_secs(5), async || {
        server.stdout().contains(&key)
            && users.iter().all(|user| server.stdout().contains(user["password"].as_str().unwrap()))
    })
    .await;
    assert_eq!(server.get("/v1/models", &key).await.status, 200);
}

#[tokio::test]
async fn demo_has_clients_a_past_on_another_account_and_readable_email() {
    let firm = Firm::new();
    let server = firm.start_with(&["--demo"]);
    let page = crate::server::client().get(&server.auth).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Marlow &#38; Finch"), "the firm has the name below its letters: {page}");
    let list = firm.json(&["client", "list", "--json"]);
    let clients = list.as_array().unwrap();
    assert_eq!(clients.len(), 38);
    assert_eq!((&clients[0]["id"], &clients[37]["id"]), (&Value::from(1001), &Value::from(1038)));
    for owner in ["maya@example.com", "omar@example.com", "ruth@example.com"] {
        assert!(clients.iter().any(|client| client["owner"] == owner), "{owner}");
    }
    let listed = firm.json(&["invoice", "list", "--json"]);
    let invoices = listed["invoices"].as_array().unwrap();
    assert!(invoices.iter().all(|invoice| invoice["account"]["name"] == "Harbor Lane Legal"), "{listed}");
    // Newest first: the open one, the corrected one, its credit note, the one that it voids, and the overdue one.
    let states: Vec<_> = invoices.iter().map(|invoice| (&invoice["kind"], &invoice["state"])).collect();
    assert_eq!(
        serde_json::json!(states),
        serde_json::json!([
            ["invoice", "issued"],
            ["invoice", "paid"],
            ["credit_note", "issued"],
            ["invoice", "void"],
            ["invoice", "issued"],
        ])
    );
    assert_ne!(listed["sums"][0]["overdue"], "0.00", "{listed}");
    let usage = |account: &str| firm.json(&["usage", "--account", account, "--by", "model", "--json"]);
    assert_eq!(usage("Demo")["total"]["requests"], 0, "the printed key is unused");
    assert_eq!(usage("Harbor Lane Legal")["data"].as_array().unwrap().len(), 2);
    let verified = firm.run(&["verify"]);
    for part in ["ledger: ", "invoices: ", "audit: "] {
        let is_ok = |line: &str| line.starts_with(part) && line.ends_with("OK");
        assert!(verified.lines().any(is_ok), "{verified}");
    }

    let demo: Value = serde_json::from_slice(&std::fs::read(firm.data().join("demo.json")).unwrap()).unwrap();
    let mail_url = demo["mail_url"].as_str().unwrap();
    assert_eq!(mail_url, format!("{}/mail", server.portal));
    crate::server::eventually("the address is printed", Duration::from_secs(5), async || {
        server.stdout().contains(mail_url)
    })
    .await;
    let browser = Browser::start().await;
    browser.open(mail_url).await;
    browser.shows("No email yet").await;
    browser.open(&format!("{}/forgotten-password", server.auth)).await;
    browser.fill("#email", "ruth@example.com").await;
    browser.follow("form button.button-primary").await;
    browser.shows("Read its email").await;
    let link = browser.script("return document.querySelector('a[target=_blank]').href").await;
    assert_eq!(link, mail_url);
    crate::server::eventually("the email is sent", Duration::from_secs(10), async || {
        browser.open(mail_url).await;
        browser.page_text().await.contains("Your password reset code")
    })
    .await;
    let text = browser.text("article").await;
    let digits = text.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() == 6);
    assert!(text.contains("ruth@example.com") && digits, "{text}");
    assert_eq!(browser.console_errors().await, Vec::<String>::new());

    drop(server);
    drop(firm.start_with(&["--demo"]));
    assert_eq!(firm.json(&["invoice", "list", "--json"]), listed, "a later start adds nothing");
    assert_eq!(firm.json(&["client", "list", "--json"]), list);
}

#[tokio::test]
async fn email_can_be_read_on_a_page_only_in_a_full_demo() {
    let firm = Firm::new();
    let server = firm.start_with(&["--demo", "--minimal"]);
    let page = crate::server::client().get(format!("{}/mail", server.portal)).send().await.unwrap();
    assert_eq!(page.status().as_u16(), 404);
    let demo: Value = serde_json::from_slice(&std::fs::read(firm.data().join("demo.json")).unwrap()).unwrap();
    assert_eq!(demo.get("mail_url"), None);
    let invoices = firm.json(&["invoice", "list", "--json"]);
    assert_eq!(invoices["total"], 0, "{invoices}");
}

#[test]
fn demo_rejects_listeners_that_other_machines_can_reach() {
    for key in ["api.listen", "portal.listen", "auth.listen", "ops.listen"] {
        let variable = format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        for address in ["0.0.0.0:0", "[::]:0"] {
            let firm = Firm::new().with(&variable, address);
            let text = firm.fail(&["serve", "--demo"]);
            assert!(text.contains(&format!("{key}: {address} can be reached from other machines")), "{text}");
            assert!(text.contains(&variable) && text.contains("start without --demo"), "{text}");
            assert!(!firm.data().exists(), "nothing is created");
        }
    }
    let portal_elsewhere = Firm::new().with("CHANCERY_PORTAL__LISTEN", "0.0.0.0:0");
    drop(portal_elsewhere.start_with(&["--demo", "--only", "api"]));
}

#[test]
fn demo_is_rejected_in_a_data_folder_with_accounts() {
    let firm = Firm::new();
    firm.run(&["account", "create", "Hale & Ward"]);
    let text = firm.fail(&["serve", "--demo"]);
    assert!(text.contains("--demo needs an empty data directory"), "{text}");
    assert_eq!(firm.json(&["account", "list", "--json"]).as_array().unwrap().len(), 1);
}
