//! The certificate of a listener in another process, which this one calls. It is trusted, and its private key is not needed here. If
//! its file is not on this machine, that listener is verified like any other server.

use super::certificate::{parse_chain, read_pem};
use super::files::POLL_INTERVAL;
use crate::config::CertificateFiles;
use chancery_http_client::OwnCertificates;
use std::sync::Arc;

pub struct OtherProcessCertificate {
    files: CertificateFiles,
    own_certificates: OwnCertificates,
}

impl OtherProcessCertificate {
    pub fn load(files: &CertificateFiles, own_certificates: &OwnCertificates) -> Self {
        let certificate = Self { files: files.clone(), own_certificates: own_certificates.clone() };
        certificate.read();
        certificate
    }

    /// A file that cannot be used changes nothing: the other process reports it.
    fn read(&self) {
        let chain = read_pem(&self.files.certificate).and_then(|pem| parse_chain(&pem));
        if let Ok([end_entity, ..]) = chain.as_deref() {
            self.own_certificates.trust(self.files.section, end_entity.clone());
        }
    }

    /// Runs until dropped.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let this = Arc::clone(&self);
            // None of it has a result worth checking.
            let _ = tokio::task::spawn_blocking(move || this.read()).await;
        }
    }
}
