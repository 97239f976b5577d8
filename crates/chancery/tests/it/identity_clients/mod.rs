//! Third-party clients, npm's `openid-client` and PyPI's `authlib`, take the portal's role at our identity provider:
//! everything from discovery to logout. `authlib` sends the client secret in the header, `openid-client` in the form.
//! They verify the logout tokens that the provider sends. The scripts play the user over plain HTTP, which shows that
//! the provider's pages need no JavaScript.

use crate::identity_providers::peers;
use crate::server::{Firm, clean_command, write_secret};
use crate::sign_in::free_port;
use serde_json::Value;
use std::path::Path;

/// Runs a script against its own demo firm; the script reports success when every call behaved as expected.
fn run(program: &str, script: &str) {
    const SECRET: &str = "a secret of the client";
    // The script listens where the provider expects the portal.
    let firm = Firm::new()
        .with("CHANCERY_IDENTITY__CLIENT_SECRET_FILE", "secret")
        .with("CHANCERY_PORTAL__PUBLIC_URL", &format!("http://localhost:{}", free_port()));
    write_secret(&firm.folder.path().join("secret"), SECRET);
    let _server = firm.start_with(&["--demo", "--minimal"]);
    let demo = std::fs::read(firm.data().join("demo.json")).unwrap();
    let demo: Value = serde_json::from_slice(&demo).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (portal_url, user) = (text(&demo["portal_url"]), &demo["users"][0]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/identity_clients").join(script);
    let output = clean_command(peers().join(program).to_str().unwrap())
        .arg(script)
        .env("NODE_MODULES", peers().join("node_modules"))
        .env("ISSUER", text(&demo["auth_url"]))
        .env("CLIENT_ID", "chancery-portal")
        .env("CLIENT_SECRET", SECRET)
        .env("REDIRECT_URI", format!("{portal_url}/auth/callback"))
        .env("POST_LOGOUT_REDIRECT_URI", format!("{portal_url}/signed-out"))
        .env("EMAIL", text(&user["email"]))
        .env("PASSWORD", text(&user["password"]))
        .output()
        .unwrap();
    let (stdout, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{errors}");
    assert!(stdout.contains("every call did what it should"), "{stdout}{errors}");
}

#[test]
fn openid_client_signs_in_and_out_at_our_provider_and_verifies_logout_tokens() {
    run("node", "openid_client.mjs");
}

#[test]
fn authlib_signs_in_and_out_at_our_provider_and_verifies_logout_tokens() {
    run("venv/bin/python", "authlib_client.py");
}
