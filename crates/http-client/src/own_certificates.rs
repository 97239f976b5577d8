//! Trust in our own listeners. Processes of one installation call each other under names that a certificate need not have, such as
//! `127.0.0.1`, and with certificates that no authority has signed. So a server is also trusted if it has exactly the certificate
//! that this installation serves, and proves that it has its key. All other servers are verified as usual.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The certificates that this installation serves. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OwnCertificates(Arc<RwLock<BTreeMap<String, Served>>>);

#[derive(Debug)]
struct Served {
    current: CertificateDer<'static>,
    /// Another process may replace its certificate a little later.
    previous: Option<CertificateDer<'static>>,
}

impl OwnCertificates {
    /// Trusts a certificate until the second one after it from the same source.
    pub fn trust(&self, source: &str, certificate: CertificateDer<'static>) {
        let mut sources = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match sources.get_mut(source) {
            Some(served) if served.current == certificate => {}
            Some(served) => {
                served.previous = Some(std::mem::replace(&mut served.current, certificate));
            }
            None => {
                sources.insert(source.to_owned(), Served { current: certificate, previous: None });
            }
        }
    }

    fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        let sources = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sources.values().any(|served| {
            served.current == *certificate || served.previous.as_ref().is_some_and(|old| old == certificate)
        })
    }

    /// Fails if the machine has no certificates of authorities.
    pub(crate) fn client_config(&self, provider: Arc<CryptoProvider>) -> Result<ClientConfig, Error> {
        let others = Verifier::new(Arc::clone(&provider))?;
        let verifier = OwnOrTrusted { own: self.clone(), others };
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
    }
}

#[derive(Debug)]
struct OwnOrTrusted {
    own: OwnCertificates,
    others: Verifier,
}

impl ServerCertVerifier for OwnOrTrusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.own.contains(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.others.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.others.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.others.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.others.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_certificate_of_a_source_is_trusted_until_the_next_change() {
        let certificate = |byte: u8| CertificateDer::from(vec![byte]);
        let own = OwnCertificates::default();
        own.trust("tls", certificate(1));
        own.trust("api.tls", certificate(9));
        own.trust("tls", certificate(2));
        own.trust("tls", certificate(2));
        let trusted = |byte: u8| own.contains(&certificate(byte));
        assert!(trusted(1) && trusted(2) && trusted(9), "the same certificate again is no change");
        own.trust("tls", certificate(3));
        assert!(!trusted(1) && trusted(2) && trusted(3) && trusted(9));
    }
}
