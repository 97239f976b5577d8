//! `chancery config`, and how startup fails on an invalid configuration.

use crate::server::{Firm, binary, clean_command, write_secret};
use serde_json::Value;
use std::collections::BTreeMap;

fn write(firm: &Firm, text: &str) {
    std::fs::write(firm.folder.path().join("chancery.toml"), text).unwrap();
}

#[test]
fn invalid_config_stops_every_command_with_key_line_and_fix() {
    let firm = Firm::new();
    write(&firm, "[limits]\ndefault_rpm = \"many\"\ndefualt_tpm = 5\n");
    for command in [&["config", "check"][..], &["serve"], &["account", "list"]] {
        let output = firm.output(command);
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.contains("chancery.toml line 2: limits.default_rpm: must be an integer, 1 or more"),
            "{text}"
        );
        assert!(
            text.contains(
                "chancery.toml line 3: limits.defualt_tpm: unknown key; did you mean limits.default_tpm?"
            ),
            "{text}"
        );
    }
    assert!(!firm.data().exists(), "a failed start leaves nothing behind");
}

#[test]
fn config_show_lists_every_setting_and_its_source() {
    let firm = Firm::new();
    write(&firm, "[billing]\ncurrency = \"EUR\"\n");
    let text = firm.run(&["config", "show"]);
    assert!(text.contains("billing.currency = \"EUR\"  # chancery.toml line 2"), "{text}");
    assert!(
        text.contains("api.listen = \"127.0.0.1:0\"  # environment variable CHANCERY_API__LISTEN"),
        "{text}"
    );
    assert!(text.contains("limits.default_rpm = \"60\"  # default"), "{text}");
    assert!(firm.run(&["config", "check"]).contains("configuration OK"));
}

#[test]
fn config_show_masks_what_urls_may_hide() {
    let firm = Firm::new();
    let url = "https://receiver.example/hooks?token=hunter2&b=hunter2";
    let text = format!(
        "[checkpoints]\nwebhook = \"{url}\"\n[mail]\nsmtp = \"smtps://firm:hunter2@mail.example.com\"\n"
    );
    write_secret(&firm.folder.path().join("chancery.toml"), &text);
    for options in [&[][..], &["--json"]] {
        let shown = firm.run(&[&["config", "show"], options].concat());
        assert!(shown.contains("https://receiver.example/hooks?token=***&b=***"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    write(&firm, &format!("[portal]\npublic_url = \"{url}\"\n"));
    let error = firm.fail(&["config", "check"]);
    assert!(error.contains("https://receiver.example/hooks?token=***&b=***"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn example_config_file_has_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let show = |arguments: &[&str]| -> BTreeMap<String, String> {
        let mut command = clean_command(binary());
        let output =
            command.args(["config", "show", "--json"]).args(arguments).current_dir(folder.path()).output();
        let settings: Vec<Value> = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        settings.iter().map(|setting| (text(&setting["key"]), text(&setting["value"]))).collect()
    };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../chancery.example.toml");
    std::fs::copy(example, folder.path().join("example.toml")).unwrap();
    let (mut written, defaults) = (show(&["--config", "example.toml"]), show(&[]));
    // Defaults that are derived from other settings.
    assert_eq!(written.remove("api.public_url").as_deref(), Some("http://localhost:8080"));
    assert_eq!(written.remove("portal.public_url").as_deref(), Some("http://localhost:8081"));
    assert_eq!(written, defaults);
}
