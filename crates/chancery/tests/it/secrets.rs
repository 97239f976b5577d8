//! Secrets at rest: the key of the secrets in the database, its rotation, and files that others can read.

use crate::server::{Firm, Reply, SECRETS_KEY, Server, client, file_mode, write_secret};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const OTHER_KEY: &str = "YW5vdGhlciBrZXkgb2YgdGhlIGRhdGFiYXNlcyAuLi4=";

/// The services that store secrets at their first start, without a model.
const PAGES: &[&str] = &["--only", "portal,auth"];
const SERVE_PAGES: &[&str] = &["serve", "--only", "portal,auth"];

fn firm_without_a_key() -> Firm {
    Firm::new().without("CHANCERY_SECRETS__KEY")
}

fn key_file(firm: &Firm) -> PathBuf {
    firm.data().join("secrets.key")
}

fn keys_in(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

async fn signing_key_ids(server: &Server) -> Vec<String> {
    let reply = Reply::read(client().get(format!("{}/jwks.json", server.auth)).send().await.unwrap()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let keys = reply.body["keys"].as_array().unwrap();
    keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn key_is_created_in_the_data_directory_and_needed_from_then_on() {
    let firm = firm_without_a_key();
    firm.run(&["webhook", "add", "https://localhost/hooks"]);
    let mut server = firm.start_with(PAGES);
    let signing_keys = signing_key_ids(&server).await;
    let path = key_file(&firm);
    assert_eq!(file_mode(&path), 0o600);
    let key = std::fs::read_to_string(&path).unwrap();
    assert!(!server.log().contains(key.trim()), "{}", server.log());
    server.end();
    let database = firm.data().join("chancery.db");
    if database.exists() {
        let copy = std::fs::read(database).unwrap();
        assert!(!copy.windows(key.trim().len()).any(|window| window == key.trim().as_bytes()));
    }

    std::fs::remove_file(&path).unwrap();
    let text = firm.fail(SERVE_PAGES);
    for part in ["data/secrets.key", "restore it from a backup", "secrets.key_file"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!path.exists(), "a new key would not decrypt anything");
    firm.run(&["account", "list"]);
    firm.run(&["verify"]);
    assert!(firm.run(&["webhook", "list"]).contains("https://localhost/hooks"));

    write_secret(&path, OTHER_KEY);
    let text = firm.fail(SERVE_PAGES);
    assert!(text.contains("data/secrets.key: the key ") && text.contains("is missing"), "{text}");

    write_secret(&path, &key);
    assert_eq!(signing_key_ids(&firm.start_with(PAGES)).await, signing_keys, "the same keys as before");
}

#[test]
fn invalid_key_is_a_startup_error_that_names_the_setting() {
    for (variable, value, expected) in [
        (
            "CHANCERY_SECRETS__KEY",
            "hunter2",
            "secrets.key (environment variable CHANCERY_SECRETS__KEY): line 1: ",
        ),
        ("CHANCERY_SECRETS__KEY_FILE", "nowhere.key", "secrets.key_file: nowhere.key: No such file"),
        ("CHANCERY_SECRETS__KEY_FILE", "invalid.key", "secrets.key_file: invalid.key: line 1: "),
    ] {
        let firm = firm_without_a_key().with(variable, value);
        write_secret(&firm.folder.path().join("invalid.key"), "hunter2\n");
        let text = firm.fail(SERVE_PAGES);
        assert!(text.contains(expected) && text.contains("openssl rand -base64 32"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn secret_files_that_others_can_read_are_rejected() {
    let model = "[[models]]\nname = \"m\"\nengine = \"upstream\"\nendpoints = [\"http://127.0.0.1:9/v1\"]\n\
        api_key_file = \"open.key\"\ncontext_tokens = 64\ninput_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n";
    for (section, setting, services) in [
        ("[secrets]\nkey_file = \"open.key\"\n", "secrets.key_file", "portal,auth"),
        ("[identity]\nclient_secret_file = \"open.key\"\n", "identity.client_secret_file", "portal,auth"),
        (
            "[portal.drafting]\napi_url = \"http://127.0.0.1:9\"\napi_key_file = \"open.key\"\n",
            "portal.drafting.api_key_file",
            "portal,auth",
        ),
        (model, "api_key_file", "api"),
    ] {
        let mut firm = Firm::without_a_model();
        if setting == "secrets.key_file" {
            firm = firm.without("CHANCERY_SECRETS__KEY");
        }
        let path = firm.folder.path().join("open.key");
        std::fs::write(firm.folder.path().join("chancery.toml"), section).unwrap();
        write_secret(&path, SECRETS_KEY);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let text = firm.fail(&["serve", "--only", services]);
        assert!(text.contains(&format!("{setting}: ")), "{setting}: {text}");
        assert!(text.contains("(mode 0644)") && text.contains("chmod 600"), "{setting}: {text}");
        assert!(!text.contains(SECRETS_KEY), "{setting}: {text}");
    }
}

#[test]
fn systemd_credential_is_used_if_no_setting_names_a_key() {
    let credentials = tempfile::tempdir().unwrap();
    write_secret(&credentials.path().join("secrets.key"), SECRETS_KEY);
    let firm = firm_without_a_key().with("CREDENTIALS_DIRECTORY", credentials.path().to_str().unwrap());
    let mut server = firm.start_with(PAGES);
    server.end();
    assert!(!key_file(&firm).exists());
    let text = firm.fail(&["secrets", "rotate"]);
    assert!(text.contains("systemd credential secrets.key") && text.contains("restart every node"), "{text}");

    write_secret(&credentials.path().join("secrets.key"), &format!("{OTHER_KEY}\n{SECRETS_KEY}\n"));
    let text = firm.run(&["secrets", "rotate"]);
    assert!(text.contains("secrets encrypted with the key "), "{text}");
    write_secret(&credentials.path().join("secrets.key"), OTHER_KEY);
    firm.start_with(PAGES).end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_keeps_a_running_server_working() {
    let firm = firm_without_a_key();
    firm.run(&["account", "create", "Hale & Ward"]);
    assert!(firm.run(&["secrets", "rotate"]).contains("nothing to rotate"));
    firm.run(&["webhook", "add", "https://localhost/hooks"]);
    let mut server = firm.start_with(PAGES);
    let before = signing_key_ids(&server).await;
    let (url, is_over) = (format!("{}/jwks.json", server.auth), Arc::new(AtomicBool::new(false)));
    let load = {
        let (client, is_over) = (client(), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut requests = 0;
            while !is_over.load(Ordering::SeqCst) {
                let reply = Reply::read(client.get(&url).send().await.unwrap()).await;
                assert_eq!(reply.status, 200, "{}", reply.body);
                requests += 1;
            }
            requests
        })
    };
    let mut printed = firm.run(&["secrets", "rotate"]);
    assert!(printed.contains(" added to "), "{printed}");
    if !printed.contains("encrypted with") {
        // With PostgreSQL, other nodes might have other copies of the file.
        assert!(printed.contains("run `chancery secrets rotate` again"), "{printed}");
        printed = firm.run(&["secrets", "rotate"]);
    }
    assert!(printed.contains("secrets encrypted with the key "), "{printed}");
    is_over.store(true, Ordering::SeqCst);
    assert!(load.await.unwrap() > 0);
    assert_eq!(signing_key_ids(&server).await, before);
    assert!(firm.run(&["webhook", "list"]).contains("https://localhost/hooks"));

    let keys = keys_in(&key_file(&firm));
    assert_eq!((keys.len(), file_mode(&key_file(&firm))), (2, 0o600));
    server.end();
    write_secret(&key_file(&firm), &keys[0]);
    assert_eq!(signing_key_ids(&firm.start_with(PAGES)).await, before, "the old key is not needed any more");
    write_secret(&key_file(&firm), &keys[1]);
    assert!(firm.fail(SERVE_PAGES).contains("is missing"), "it decrypts nothing any more");
}

#[test]
fn rotation_of_a_configured_key_file_waits_until_every_node_has_the_new_key() {
    let firm = firm_without_a_key().with("CHANCERY_SECRETS__KEY_FILE", "database.key");
    let path = firm.folder.path().join("database.key");
    write_secret(&path, &format!("# of November\n{SECRETS_KEY}\n"));
    firm.start_with(PAGES).end();
    let text = firm.run(&["secrets", "rotate"]);
    assert!(text.contains("added to database.key") && text.contains("every node"), "{text}");
    let keys = keys_in(&path);
    assert_eq!((keys.len(), keys[2].as_str()), (3, SECRETS_KEY), "the new key comes first");
    let text = firm.run(&["secrets", "rotate"]);
    assert!(text.contains("encrypted with the key ") && !text.contains("added"), "{text}");
    write_secret(&path, OTHER_KEY);
    let text = firm.fail(&["secrets", "rotate"]);
    assert!(text.contains("database.key: the key ") && text.contains("is missing"), "{text}");
    write_secret(&path, &keys[0]);
    firm.start_with(PAGES).end();
    assert!(!key_file(&firm).exists());
}
