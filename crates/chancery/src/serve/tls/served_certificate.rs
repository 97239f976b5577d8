//! The certificate that new connections get. Replacing it does not touch the connections that are open. While an authority
//! validates our host names (ACME, `tls-alpn-01`), its connections get the answers to its challenges instead.

use super::certificate::Certificate;
use chancery_listener::ACME_CHALLENGE;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Debug, Default)]
pub struct ServedCertificate {
    current: RwLock<Option<Current>>,
    /// The answer to the challenge for each host name.
    challenges: RwLock<BTreeMap<String, Arc<CertifiedKey>>>,
}

#[derive(Clone, Debug)]
struct Current {
    key: Arc<CertifiedKey>,
    valid_from_s: i64,
    expires_at_s: i64,
}

impl ServedCertificate {
    pub fn replace(&self, certificate: &Certificate) {
        let Certificate { key, valid_from_s, expires_at_s } = certificate;
        let current =
            Current { key: Arc::clone(key), valid_from_s: *valid_from_s, expires_at_s: *expires_at_s };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(current);
    }

    /// `None` if there is no certificate yet.
    pub fn expires_at_s(&self) -> Option<i64> {
        self.current().map(|current| current.expires_at_s)
    }

    /// The beginning and the end of the validity; `None` if there is no certificate yet.
    pub fn validity_s(&self) -> Option<[i64; 2]> {
        self.current().map(|current| [current.valid_from_s, current.expires_at_s])
    }

    pub fn answer_challenge(&self, host: String, answer: CertifiedKey) {
        let mut challenges = self.challenges.write().unwrap_or_else(PoisonError::into_inner);
        challenges.insert(host, Arc::new(answer));
    }

    pub fn clear_challenges(&self) {
        self.challenges.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn current(&self) -> Option<Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn challenge(&self, host: &str) -> Option<Arc<CertifiedKey>> {
        let challenges = self.challenges.read().unwrap_or_else(PoisonError::into_inner);
        challenges.get(&host.to_ascii_lowercase()).cloned()
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.alpn().is_some_and(|mut protocols| protocols.any(|name| name == ACME_CHALLENGE)) {
            true => hello.server_name().and_then(|host| self.challenge(host)),
            false => self.current().map(|current| current.key),
        }
    }
}
