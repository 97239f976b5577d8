//! A certificate in files. They are read again on SIGHUP, and when their contents change. A pair that cannot be used, such as a new
//! certificate whose key is still being written, changes nothing.

use super::certificate::{Certificate, read_pem, read_private_key};
use super::served_certificate::ServedCertificate;
use crate::config::CertificateFiles;
use anyhow::Context;
use chancery_domain::{Clock, UnixMillis};
use chancery_http_client::OwnCertificates;
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How soon changed files are noticed. Contents are compared, because a change may keep a file's time and size.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Warn this long before a certificate expires.
const EXPIRY_WARNING_DAYS: i64 = 14;
const DAY_S: i64 = 24 * 60 * 60;

pub struct FileCertificate {
    files: CertificateFiles,
    served: Arc<ServedCertificate>,
    own_certificates: OwnCertificates,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The hash of the contents that are served.
    loaded: Option<[u8; 32]>,
    /// Why the files could not be used when they were last read.
    problem: Option<String>,
    is_reported: bool,
    /// The day, counted from 1970, on which the end of the validity was last looked at.
    checked_on_day: Option<i64>,
}

impl FileCertificate {
    /// Fails if the files cannot be used.
    pub fn load(
        files: &CertificateFiles,
        own_certificates: &OwnCertificates,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let certificate = Self {
            files: files.clone(),
            served: Arc::default(),
            own_certificates: own_certificates.clone(),
            clock,
            state: Mutex::default(),
        };
        certificate.reload()?;
        Ok(certificate)
    }

    pub fn files(&self) -> &CertificateFiles {
        &self.files
    }

    pub fn served(&self) -> &Arc<ServedCertificate> {
        &self.served
    }

    /// Returns whether the files have changed. If they cannot be used, what is served stays.
    pub fn reload(&self) -> anyhow::Result<bool> {
        let mut state = self.lock();
        let CertificateFiles { section, certificate, private_key } = &self.files;
        let read = || -> anyhow::Result<_> {
            let chain = read_pem(certificate).context("certificate")?;
            let key = read_private_key(private_key).context("private_key")?;
            let hash: [u8; 32] =
                Sha256::new().chain_update(Sha256::digest(&chain)).chain_update(&key).finalize().into();
            if state.loaded == Some(hash) {
                return Ok(None);
            }
            Ok(Some((hash, Certificate::from_pem(&chain, &key)?)))
        };
        let Some((hash, certificate)) = read().with_context(|| format!("[{section}]"))? else {
            return Ok(false);
        };
        if let Some(end_entity) = certificate.end_entity() {
            self.own_certificates.trust(section, end_entity.clone());
        }
        self.served.replace(&certificate);
        state.loaded = Some(hash);
        state.checked_on_day = None;
        drop(state);
        let (file, expires_at) = (self.files.certificate.display(), iso(certificate.expires_at_s));
        tracing::info!(section, %file, expires_at, "certificate loaded");
        self.warn_of_expiry();
        Ok(true)
    }

    /// Runs until dropped.
    pub async fn watch(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let this = Arc::clone(&self);
            // None of it has a result worth checking.
            let _ = tokio::task::spawn_blocking(move || this.poll()).await;
        }
    }

    /// Reports a problem once, and only if it is still there at the second look: files are replaced one after the other.
    fn poll(&self) {
        let problem = self.reload().err().map(|error| format!("{error:#}"));
        self.warn_of_expiry();
        let mut state = self.lock();
        match problem {
            Some(problem) if state.problem.as_ref() == Some(&problem) => {
                if !state.is_reported {
                    state.is_reported = true;
                    tracing::error!(
                        error = problem,
                        "changed certificate cannot be used, keeping the current one"
                    );
                }
            }
            problem => {
                state.problem = problem;
                state.is_reported = false;
            }
        }
    }

    /// Once a day.
    fn warn_of_expiry(&self) {
        let now_s = self.clock.now().0.div_euclid(1000);
        let today = now_s.div_euclid(DAY_S);
        if self.lock().checked_on_day.replace(today) == Some(today) {
            return;
        }
        let Some(expires_at_s) = self.served.expires_at_s() else { return };
        let (section, file) = (self.files.section, self.files.certificate.display());
        let expires_at = iso(expires_at_s);
        match (expires_at_s - now_s).div_euclid(DAY_S) {
            ..0 => tracing::error!(section, %file, expires_at, "certificate has expired, replace it"),
            days @ 0..EXPIRY_WARNING_DAYS => {
                tracing::warn!(section, %file, expires_at, days, "certificate expires soon, replace it");
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn iso(time_s: i64) -> String {
    UnixMillis(time_s.saturating_mul(1000)).to_iso()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::SystemClock;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn write_pair(folder: &Path) {
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), issued.cert.pem()).unwrap();
        write_key(folder, &issued.signing_key.serialize_pem());
    }

    fn write_key(folder: &Path, pem: &str) {
        let path = folder.join("key.pem");
        std::fs::write(&path, pem).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    }

    fn files(folder: &Path) -> CertificateFiles {
        CertificateFiles {
            section: "tls",
            certificate: folder.join("cert.pem"),
            private_key: folder.join("key.pem"),
        }
    }

    fn load(folder: &Path) -> anyhow::Result<FileCertificate> {
        FileCertificate::load(&files(folder), &OwnCertificates::default(), Arc::new(SystemClock))
    }

    #[test]
    fn half_written_pair_keeps_the_current_certificate() {
        let folder = tempfile::tempdir().unwrap();
        write_pair(folder.path());
        let certificate = load(folder.path()).unwrap();
        assert!(!certificate.reload().unwrap(), "nothing has changed");
        let key = std::fs::read_to_string(folder.path().join("key.pem")).unwrap();
        write_pair(folder.path());
        let new_key = std::fs::read_to_string(folder.path().join("key.pem")).unwrap();
        write_key(folder.path(), &key);
        let before = certificate.served().expires_at_s();
        assert!(certificate.reload().is_err(), "the key is still the old one");
        assert_eq!(certificate.served().expires_at_s(), before);
        write_key(folder.path(), &new_key);
        assert!(certificate.reload().unwrap());
    }

    #[test]
    fn missing_file_error_names_the_section_and_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", load(folder.path()).err().unwrap());
        assert!(
            error.starts_with("[tls]: certificate: cannot read ") && error.contains("cert.pem"),
            "{error}"
        );
    }
}
