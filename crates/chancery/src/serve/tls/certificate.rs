//! A certificate with its chain and private key, parsed from PEM and checked: the key belongs to the certificate.

use crate::secret_file;
use anyhow::{Context, bail, ensure};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Long chains have a few kilobytes. A larger file is not a certificate.
const MAX_PEM_BYTES: u64 = 256 * 1024;

pub struct Certificate {
    pub key: Arc<CertifiedKey>,
    /// The beginning and the end of its validity, in seconds since 1970.
    pub valid_from_s: i64,
    pub expires_at_s: i64,
}

impl Certificate {
    /// `chain` begins with the certificate itself.
    pub fn from_pem(chain: &[u8], private_key: &[u8]) -> anyhow::Result<Self> {
        let chain = parse_chain(chain)?;
        let private_key = PrivateKeyDer::from_pem_slice(private_key)
            .context("private_key: no private key in PEM format")?;
        let first = chain.first().context("certificate: no certificate in PEM format")?;
        let [valid_from_s, expires_at_s] = validity_s(first)?;
        let key = CertifiedKey::from_der(chain, private_key, &default_provider());
        let key = key.context("private_key: cannot be used with this certificate")?;
        Ok(Self { key: Arc::new(key), valid_from_s, expires_at_s })
    }

    /// The certificate itself, without its chain.
    pub fn end_entity(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }
}

fn validity_s(certificate: &CertificateDer<'_>) -> anyhow::Result<[i64; 2]> {
    match X509Certificate::from_der(certificate.as_ref()) {
        Ok((_, parsed)) => {
            let validity = parsed.validity();
            Ok([validity.not_before.timestamp(), validity.not_after.timestamp()])
        }
        Err(_) => bail!("certificate: not an X.509 certificate"),
    }
}

pub fn parse_chain(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.context("certificate: not in PEM format")?;
    ensure!(!chain.is_empty(), "certificate: no certificate in PEM format");
    Ok(chain)
}

pub fn read_pem(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || -> anyhow::Result<Vec<u8>> { read_all(File::open(path)?) };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Reads the file of a private key. Like every file with a secret, it is rejected if other users can read or change it.
pub fn read_private_key(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || -> anyhow::Result<Vec<u8>> {
        let file = File::open(path)?;
        secret_file::check_permissions(&file.metadata()?, path)?;
        read_all(file)
    };
    read().with_context(|| format!("cannot use {}", path.display()))
}

fn read_all(file: File) -> anyhow::Result<Vec<u8>> {
    let mut pem = Vec::new();
    file.take(MAX_PEM_BYTES + 1).read_to_end(&mut pem)?;
    if pem.len() as u64 > MAX_PEM_BYTES {
        bail!("the file has more than {MAX_PEM_BYTES} bytes");
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let issued = rcgen::generate_simple_self_signed(vec!["api.example.com".to_owned()]).unwrap();
        (issued.cert.pem(), issued.signing_key.serialize_pem())
    }

    fn problem(chain: &str, private_key: &str) -> String {
        let outcome = Certificate::from_pem(chain.as_bytes(), private_key.as_bytes());
        format!("{:#}", outcome.err().expect("it is rejected"))
    }

    #[test]
    fn certificate_is_read_with_its_chain_and_key() {
        let ((chain, key), (authority, _)) = (pair(), pair());
        let certificate =
            Certificate::from_pem(format!("{chain}{authority}").as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(certificate.key.cert.len(), 2);
        assert_eq!(certificate.end_entity(), parse_chain(chain.as_bytes()).unwrap().first());
        assert!(certificate.expires_at_s > 1_800_000_000, "rcgen's certificates are valid for very long");
    }

    #[test]
    fn unusable_pair_is_rejected_by_the_name_of_its_key() {
        let ((chain, key), (_, other_key)) = (pair(), pair());
        for (chain, key, part) in [
            (chain.as_str(), other_key.as_str(), "private_key: cannot be used with this certificate"),
            (chain.as_str(), "", "private_key: no private key in PEM format"),
            (chain.as_str(), chain.as_str(), "private_key: no private key in PEM format"),
            ("", key.as_str(), "certificate: no certificate in PEM format"),
            (key.as_str(), key.as_str(), "certificate: no certificate in PEM format"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                key.as_str(),
                "certificate: not an X.509 certificate",
            ),
        ] {
            let problem = problem(chain, key);
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn private_key_that_others_can_read_is_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, is_private) in [(0o600, true), (0o400, true), (0o644, false), (0o604, false)] {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            assert_eq!(read_private_key(file.path()).is_ok(), is_private, "{mode:o}");
        }
    }
}
