//! Starts that cannot work: each says the cause and the fix, quickly, and leaves nothing half-made.

use crate::server::{Firm, MODEL, model_file, request};
use std::io::{Seek, SeekFrom, Write};
use std::net::TcpListener;

#[test]
fn a_port_in_use_is_named_with_the_setting_that_changes_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["api.listen", "portal.listen", "auth.listen", "ops.listen"] {
        let variable = &format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        let firm = Firm::new().with(variable, &address);
        let text = firm.fail(&["serve"]);
        assert!(text.contains(&format!("{key}: {address} is in use")) && text.contains(variable), "{text}");
    }
}

#[test]
fn a_missing_model_file_is_named_with_the_command_that_fetches_it() {
    let firm = Firm::new().with("CHANCERY_MODELS__0__FILE", "nowhere.gguf");
    let text = firm.fail(&["serve"]);
    assert!(text.contains("nowhere.gguf") && text.contains("chancery model pull"), "{text}");
}

#[test]
fn a_corrupt_or_truncated_model_file_is_refused_by_name() {
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
fn a_model_that_does_not_fit_into_memory_is_refused_with_the_numbers_before_it_is_read() {
    let firm = Firm::new().with("CHANCERY_MODELS__0__CONTEXT_TOKENS", "8192");
    let text = firm.fail_limited("ulimit -v 500000");
    for part in [
        "of memory would be needed",
        "`ulimit -v`",
        "smollm2-135m needs",
        "lower `context_tokens` or `slots`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("model loaded"), "{text}");
}

#[tokio::test]
async fn with_little_memory_a_model_is_served_with_fewer_slots() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start_limited("ulimit -v 900000");
    assert!(!server.log().contains("(16 slots"), "{}", server.log());
    assert_eq!(server.generate(&key, &request("", "Say hello.", 4)).await.tokens().1, 4);
}

#[test]
fn a_data_folder_that_cannot_be_made_is_named_with_the_setting_that_changes_it() {
    let firm = Firm::new();
    let file = firm.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let inside = file.join("data");
    let text = firm.fail(&["serve", "--data", inside.to_str().unwrap()]);
    assert!(text.contains(inside.to_str().unwrap()) && text.contains("--data"), "{text}");
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused() {
    let firm = Firm::new();
    let _server = firm.start();
    let text = firm.fail(&["serve"]);
    assert!(text.contains("another chancery server runs on the data folder"), "{text}");
}

#[test]
fn a_file_that_is_not_a_database_is_left_as_it_is() {
    let firm = Firm::new();
    std::fs::create_dir(firm.data()).unwrap();
    let database = firm.data().join("chancery.db");
    let contents = "these are notes, not a database. ".repeat(200);
    std::fs::write(&database, &contents).unwrap();
    let text = firm.fail(&["serve"]);
    assert!(text.contains("is not a database"), "{text}");
    assert_eq!(std::fs::read_to_string(&database).unwrap(), contents);
}
