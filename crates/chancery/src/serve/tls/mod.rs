//! TLS on the listeners: the certificates that they serve, and which of our own clients trust them. Connections keep the
//! certificate they began with; a new one is for new connections.

mod acme;
mod acme_client;
mod certificate;
mod files;
mod other_process;
mod served_certificate;

pub use served_certificate::ServedCertificate;

use crate::config::{Config, TlsSource};
use acme::AcmeCertificate;
use anyhow::Context;
use certificate::{parse_chain, read_pem};
use chancery_domain::{Clock, SystemClock};
use chancery_http_client::OwnCertificates;
use chancery_listener::{ACME_CHALLENGE, HTTP_2};
use files::FileCertificate;
use other_process::OtherProcessCertificate;
use rustls::ServerConfig;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// By its name in the handshake (ALPN).
const HTTP_1_1: &[u8] = b"http/1.1";

/// Which listeners this process has.
#[derive(Clone, Copy, Debug)]
pub struct ServedListeners {
    pub api: bool,
    pub portal: bool,
    pub auth: bool,
}

/// The certificates of every listener that the configuration gives one.
pub struct Certificates {
    files: Vec<Arc<FileCertificate>>,
    /// In files, for listeners in other processes.
    others: Vec<Arc<OtherProcessCertificate>>,
    acme: Vec<Arc<AcmeCertificate>>,
    own_certificates: OwnCertificates,
}

impl Certificates {
    /// Fails if one of this process cannot be used. Contacts no authority yet.
    pub fn load(config: &Config, listeners: ServedListeners) -> anyhow::Result<Self> {
        let own_certificates = OwnCertificates::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut certificates =
            Self { files: Vec::new(), others: Vec::new(), acme: Vec::new(), own_certificates };
        let auth = config.tls.auth.as_ref().filter(|_| config.auth.is_enabled);
        let listeners = [
            (config.tls.api.as_ref(), listeners.api),
            (config.tls.portal.as_ref(), listeners.portal),
            (auth, listeners.auth),
        ];
        for (source, _) in listeners {
            let Some(source) = source.filter(|source| certificates.resolver(source).is_none()) else {
                continue;
            };
            // By this listener, or by another one with the same section.
            let is_served = listeners.iter().any(|(other, is_served)| *is_served && *other == Some(source));
            let (own, clock) = (&certificates.own_certificates, Arc::clone(&clock));
            match source {
                TlsSource::Files(files) if is_served => {
                    let loaded = FileCertificate::load(files, own, clock)?;
                    certificates.files.push(Arc::new(loaded));
                }
                TlsSource::Files(files) => {
                    let loaded = OtherProcessCertificate::load(files, own);
                    certificates.others.push(Arc::new(loaded));
                }
                TlsSource::Acme(acme) if is_served => {
                    let loaded = AcmeCertificate::load(acme, &config.data, own, clock);
                    let loaded = loaded.with_context(|| format!("[{}]", acme.section))?;
                    certificates.acme.push(Arc::new(loaded));
                }
                TlsSource::Acme(_) => {}
            }
        }
        Ok(certificates)
    }

    /// Notices changed files, and obtains and renews certificates of authorities, from now on. The listeners must be open.
    pub fn watch(&self) {
        for certificate in &self.files {
            tokio::spawn(Arc::clone(certificate).watch());
        }
        for certificate in &self.others {
            tokio::spawn(Arc::clone(certificate).watch());
        }
        for certificate in &self.acme {
            tokio::spawn(Arc::clone(certificate).keep_valid());
        }
    }

    pub fn own_certificates(&self) -> &OwnCertificates {
        &self.own_certificates
    }

    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Reads the files of this process again. Those that cannot be used change nothing, and are in the error.
    pub fn reload(&self) -> anyhow::Result<()> {
        let problems = self.files.iter().filter_map(|certificate| certificate.reload().err());
        let problems: Vec<String> = problems.map(|error| format!("{error:#}")).collect();
        anyhow::ensure!(problems.is_empty(), "{}", problems.join("; "));
        Ok(())
    }

    /// The certificates by section, for the operations listener.
    pub fn served(&self) -> Vec<(&'static str, Arc<ServedCertificate>)> {
        let files = self.files.iter().map(|file| (file.files().section, Arc::clone(file.served())));
        let acme = self.acme.iter().map(|acme| (acme.config().section, Arc::clone(acme.served())));
        files.chain(acme).collect()
    }

    /// The TLS settings of a listener of this process; `None` if it has no TLS.
    pub fn server_config(&self, source: Option<&TlsSource>) -> anyhow::Result<Option<Arc<ServerConfig>>> {
        let Some(source) = source else { return Ok(None) };
        let resolver = self.resolver(source);
        let resolver =
            resolver.with_context(|| format!("[{}]: the certificate is not loaded", source.section()))?;
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1_1.to_vec()];
        if let TlsSource::Acme(_) = source {
            config.alpn_protocols.push(ACME_CHALLENGE.to_vec());
        }
        // Browsers resume their sessions without another signature, and the server stores nothing for them.
        config.ticketer = Ticketer::new()?;
        Ok(Some(Arc::new(config)))
    }

    fn resolver(&self, source: &TlsSource) -> Option<Arc<ServedCertificate>> {
        let served = match source {
            TlsSource::Files(files) => self.files.iter().find(|known| known.files() == files)?.served(),
            TlsSource::Acme(acme) => self.acme.iter().find(|known| known.config() == acme)?.served(),
        };
        Some(Arc::clone(served))
    }
}

/// Reads the certificate of a listener, without its key. Returns `None` if there is none that can be read: it may be for the
/// server's eyes only.
pub fn configured_certificate(config: &Config, source: &TlsSource) -> Option<CertificateDer<'static>> {
    let pem = match source {
        TlsSource::Files(files) => read_pem(&files.certificate),
        TlsSource::Acme(acme) => read_pem(&acme::stored_certificate(acme, &config.data)),
    };
    parse_chain(&pem.ok()?).ok()?.into_iter().next()
}
