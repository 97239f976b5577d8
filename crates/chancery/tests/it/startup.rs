//! Starts that must fail: each reports the cause and the fix, quickly, and leaves nothing half-created.

use crate::server::{Firm, MODEL, model_file, request};
use std::io::{Seek, SeekFrom, Write};
use std::net::TcpListener;

#[test]
fn port_in_use_error_names_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["api.listen", "portal.listen", "auth.listen", "ops.listen"] {
        let variable = &format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        let firm = Firm::new().with(variable, &address);
        let text = firm.fail(&["serve"]);
        assert!(
            text.contains(&format!("{key}: {address} is already in use")) && text.contains(variable),
            "{text}"
        );
    }
}

#[test]
fn missing_model_file_error_names_the_pull_command() {
    let firm = Firm::new().with("CHANCERY_MODELS__0__FILE", "nowhere.gguf");
    let text = firm.fail(&["serve"]);
    assert!(text.contains("nowhere.gguf") && text.contains("chancery model pull"), "{text}");
}

#[test]
fn corrupt_or_truncated_model_file_is_rejected_by_name() {
    let firm = Firm::new();
    let broken = firm.folder.path().join("broken.gguf");
    std::fs::copy(model_file(), &broken).unwrap();
    let firm = firm
        .with("CHANCERY_MODELS__0__FILE", broken.to_str().unwrap())
        .with("CHANCERY_MODELS__0__NAME", MODEL);
    let file = std::fs::OpenOptions::new().write(true).open(&broken).unwrap();
    file.set_len(50_000_000).unwrap();
    let text = firm.fail(&["serve"]);
    assert!(text.contains("broken.gguf"), "{text}");
    let mut file = file;
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"NOPE").unwrap();
    let text = firm.fail(&["serve"]);
    assert!(text.contains("broken.gguf"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn model_too_large_for_memory_is_rejected_before_loading() {
    let firm = Firm::new().with("CHANCERY_MODELS__0__CONTEXT_TOKENS", "8192");
    let text = firm.fail_limited("ulimit -v 900000");
    for part in
        ["insufficient memory: ", "`ulimit -v`", "smollm2-135m needs", "lower `context_tokens` or `slots`"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("model loaded"), "{text}");
}

#[tokio::test]
async fn low_memory_reduces_slots() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    // Each thread that allocates takes 64 MiB of addresses for its heap, so a lower limit would leave too little for any slot.
    let server = firm.start_limited("ulimit -v 1280000");
    assert!(!server.log().contains("(16 slots"), "{}", server.log());
    assert_eq!(server.generate(&key, &request("", "Say hello.", 4)).await.tokens().1, 4);
}

#[test]
fn uncreatable_data_folder_error_names_its_setting() {
    let firm = Firm::new();
    let file = firm.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let inside = file.join("data");
    let text = firm.fail(&["serve", "--data", inside.to_str().unwrap()]);
    assert!(text.contains(inside.to_str().unwrap()) && text.contains("--data"), "{text}");
}

#[tokio::test]
async fn second_server_on_one_data_folder_is_rejected() {
    let firm = Firm::new();
    let _server = firm.start();
    let text = firm.fail(&["serve"]);
    assert!(text.contains("another chancery server is using the data directory"), "{text}");
}

#[test]
fn file_that_is_not_a_database_is_left_unchanged() {
    let firm = Firm::new();
    std::fs::create_dir(firm.data()).unwrap();
    let database = firm.data().join("chancery.db");
    let contents = "these are notes, not a database. ".repeat(200);
    std::fs::write(&database, &contents).unwrap();
    let text = firm.fail(&["serve"]);
    assert!(text.contains("is not a database"), "{text}");
    assert_eq!(std::fs::read_to_string(&database).unwrap(), contents);
}
