//! Certificates that cannot be used stop the start, with the key and the fix. Clear text on a port with TLS gets nothing.

use super::{CERTIFICATE_FILE, PRIVATE_KEY_FILE, TestCertificate, client_trusting, https, secured};
use crate::server::{Firm, client};
use std::os::unix::fs::PermissionsExt;

#[test]
fn unusable_certificate_stops_the_start_and_the_check() {
    let firm = secured(Firm::new(), &TestCertificate::local());
    let [certificate, private_key] =
        [CERTIFICATE_FILE, PRIVATE_KEY_FILE].map(|name| firm.folder.path().join(name));
    assert!(firm.run(&["config", "check"]).contains("configuration OK"));
    let fails = |part: &str| {
        for command in [&["serve"][..], &["config", "check"]] {
            let error = firm.fail(command);
            assert!(error.contains("[tls]") && error.contains(part), "{command:?}: {error}");
        }
    };
    std::fs::set_permissions(&private_key, PermissionsExt::from_mode(0o644)).unwrap();
    fails("private_key: cannot use private_key.pem: other users can read or change the file (mode 0644)");
    TestCertificate::local().write(firm.folder.path());
    std::fs::write(&certificate, TestCertificate::local().certificate_pem).unwrap();
    fails("private_key: cannot be used with this certificate");
    std::fs::remove_file(&certificate).unwrap();
    fails("certificate: cannot read certificate.pem");
}

#[tokio::test]
async fn operations_listener_has_no_tls_and_the_others_have_nothing_else() {
    let certificate = TestCertificate::local();
    let firm = secured(Firm::new(), &certificate);
    let server = firm.start();
    let metrics = client().get(format!("{}/metrics", server.ops)).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("chancery_tls_certificate_expires_at_seconds{section=\"tls\"}"), "{metrics}");
    for url in [&server.api, &server.portal, &server.auth] {
        assert!(client().get(url).send().await.is_err(), "{url} answers in clear text");
        let trusting = client_trusting(&[&certificate]).build().unwrap();
        trusting.get(https(url)).send().await.unwrap();
    }
}

#[tokio::test]
async fn process_needs_the_private_keys_of_its_own_listeners_only() {
    let certificate = TestCertificate::local();
    let firm = secured(Firm::new(), &certificate)
        .with("CHANCERY_PORTAL__TLS__CERTIFICATE", CERTIFICATE_FILE)
        .with("CHANCERY_PORTAL__TLS__PRIVATE_KEY", "elsewhere.pem");
    let error = firm.fail(&["serve", "--only", "portal"]);
    assert!(error.contains("[portal.tls]") && error.contains("elsewhere.pem"), "{error}");
    let server = firm.start_with(&["--only", "api"]);
    let trusting = client_trusting(&[&certificate]).build().unwrap();
    trusting.get(https(&server.api)).send().await.unwrap();
}
