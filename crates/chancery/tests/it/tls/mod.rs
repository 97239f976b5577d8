//! HTTPS on the listeners.

mod acme;
mod certificate_errors;
mod http2;
mod own_calls;
mod rolling_change;

use crate::server::Firm;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const CERTIFICATE_FILE: &str = "certificate.pem";
const PRIVATE_KEY_FILE: &str = "private_key.pem";

/// A certificate that no authority has signed.
struct TestCertificate {
    certificate_pem: String,
    private_key_pem: String,
}

impl TestCertificate {
    /// For the addresses at which tests reach a server.
    fn local() -> Self {
        Self::named(&["localhost", "127.0.0.1"])
    }

    fn named(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let issued = rcgen::generate_simple_self_signed(names).unwrap();
        Self { certificate_pem: issued.cert.pem(), private_key_pem: issued.signing_key.serialize_pem() }
    }

    /// Replaces both files, one after the other.
    fn write(&self, folder: &Path) {
        for (name, pem) in
            [(CERTIFICATE_FILE, &self.certificate_pem), (PRIVATE_KEY_FILE, &self.private_key_pem)]
        {
            // Only its owner can read it.
            let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
            file.write_all(pem.as_bytes()).unwrap();
            file.persist(folder.join(name)).unwrap();
        }
    }

    fn as_root(&self) -> reqwest::Certificate {
        reqwest::Certificate::from_pem(self.certificate_pem.as_bytes()).unwrap()
    }
}

/// A firm whose listeners have this certificate.
fn secured(firm: Firm, certificate: &TestCertificate) -> Firm {
    certificate.write(firm.folder.path());
    firm.with("CHANCERY_TLS__CERTIFICATE", CERTIFICATE_FILE)
        .with("CHANCERY_TLS__PRIVATE_KEY", PRIVATE_KEY_FILE)
}

fn https(url: &str) -> String {
    url.replace("http://", "https://")
}

/// Trusts these certificates and no other.
fn client_trusting(certificates: &[&TestCertificate]) -> reqwest::ClientBuilder {
    chancery_http_client::client_builder()
        .no_proxy()
        .timeout(Duration::from_secs(120))
        .tls_certs_only(certificates.iter().map(|certificate| certificate.as_root()))
}
