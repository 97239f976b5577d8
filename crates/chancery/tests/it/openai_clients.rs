//! OpenAI's own clients, in Python and JavaScript, unmodified: only the base URL and the key are ours. Their scripts are
//! in `tests/clients/`.

use crate::server::{Firm, clean_command};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `scripts/openai-clients` installs them.
pub fn clients() -> PathBuf {
    let folder = std::env::var_os("CHANCERY_TEST_OPENAI_CLIENTS");
    let folder = folder.expect(
        "run `make test`, which fetches OpenAI's clients, or set CHANCERY_TEST_OPENAI_CLIENTS to what \
         `scripts/openai-clients` prints",
    );
    folder.into()
}

fn command(program: &str, script: &str) -> Command {
    let program = clients().join("venv/bin").join(program);
    assert!(program.exists(), "{} is not there; run `scripts/openai-clients`", program.display());
    let mut command = clean_command(program.to_str().unwrap());
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script));
    command
}

/// Runs a script against its own server; the script reports success when every call behaved as expected.
fn run(mut command: Command) {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let limited_key = firm.limited_account_with_key("Limited", 1, 10_000);
    let server = firm.start();
    let output = command
        .env("CHANCERY_URL", &server.api)
        .env("CHANCERY_API_KEY", key)
        .env("LIMITED_API_KEY", limited_key)
        .output()
        .unwrap();
    let (stdout, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{errors}");
    assert!(stdout.contains("every call did what it should"), "{stdout}{errors}");
}

#[test]
fn openai_python_client_works_with_base_url_and_key() {
    run(command("python", "openai_python.py"));
}

#[test]
fn openai_javascript_client_works_with_base_url_and_key() {
    let mut command = command("node", "openai_javascript.mjs");
    command.env("NODE_MODULES", clients().join("node_modules"));
    run(command);
}
