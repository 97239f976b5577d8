//! A certificate from an authority by ACME (RFC 8555), obtained after the start and renewed when a third of its validity is left:
//!
//! 1. The account is created at the first start. It and the certificate are stored in `DATA/acme/`, so that a restart needs nothing
//!    of the authority.
//! 2. The order names all host names. For each, the authority connects to port 443 and expects a certificate with its challenge
//!    (`tls-alpn-01`, RFC 8737). Every listener with this section answers it, whatever its own host name is.
//! 3. The new certificate replaces the current one for new connections. After a failure, the current one stays and the next attempt
//!    is later: authorities count failures.

use super::acme_client::AcmeClient;
use super::certificate::{Certificate, read_private_key};
use super::served_certificate::ServedCertificate;
use crate::config::AcmeConfig;
use crate::data_dir::DataDir;
use crate::secret_file;
use anyhow::{Context, bail, ensure};
use chancery_domain::{Clock, UnixMillis};
use chancery_http_client::OwnCertificates;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "acme";
/// The private key and the certificate in one file, so that they are replaced together.
const CERTIFICATE_FILE: &str = "certificate.pem";
const ACCOUNT_FILE: &str = "account.json";
/// One part in this many of the validity is left when the certificate is renewed.
const RENEWAL_SHARE: i64 = 3;
/// How often the time of the renewal is compared with the clock, which may jump.
const CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Let's Encrypt accepts five failed validations of a host name per hour.
const FIRST_RETRY: Duration = Duration::from_secs(5 * 60);
const MAX_RETRY: Duration = Duration::from_secs(6 * 60 * 60);
/// How long the authority may take to validate the names, and again to sign the certificate.
const ORDER_POLLING: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

pub struct AcmeCertificate {
    config: AcmeConfig,
    folder: PathBuf,
    served: Arc<ServedCertificate>,
    own_certificates: OwnCertificates,
    clock: Arc<dyn Clock>,
}

impl AcmeCertificate {
    /// Serves the stored certificate, if there is one. Sends no request.
    pub fn load(
        config: &AcmeConfig,
        data: &Path,
        own_certificates: &OwnCertificates,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let acme = Self {
            config: config.clone(),
            folder: folder(config, data),
            served: Arc::default(),
            own_certificates: own_certificates.clone(),
            clock,
        };
        let stored = acme.folder.join(CERTIFICATE_FILE);
        if stored.exists() {
            let pem = read_private_key(&stored)?;
            let certificate = Certificate::from_pem(&pem, &pem)
                .with_context(|| format!("{} is not valid; delete it", stored.display()))?;
            acme.install(&certificate);
        }
        Ok(acme)
    }

    pub fn config(&self) -> &AcmeConfig {
        &self.config
    }

    pub fn served(&self) -> &Arc<ServedCertificate> {
        &self.served
    }

    /// Runs until dropped.
    pub async fn keep_valid(self: Arc<Self>) {
        let mut retry = FIRST_RETRY;
        loop {
            let left = self.time_until_renewal();
            if !left.is_zero() {
                tokio::time::sleep(left.min(CHECK_INTERVAL)).await;
                continue;
            }
            match self.obtain().await {
                Ok(certificate) => {
                    retry = FIRST_RETRY;
                    let (section, domains) = (self.config.section, self.config.domains.join(", "));
                    let expires_at = UnixMillis(certificate.expires_at_s.saturating_mul(1000)).to_iso();
                    tracing::info!(section, domains, expires_at, "certificate obtained");
                }
                Err(error) => {
                    let (section, error) = (self.config.section, format!("{error:#}"));
                    tracing::error!(
                        section,
                        error,
                        retry_s = retry.as_secs(),
                        "certificate not obtained, retrying"
                    );
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(MAX_RETRY);
                }
            }
        }
    }

    fn time_until_renewal(&self) -> Duration {
        let renew_at_s = self.served.validity_s().map_or(i64::MIN, renewal_time_s);
        let left_s = renew_at_s.saturating_sub(self.clock.now().0.div_euclid(1000));
        Duration::from_secs(u64::try_from(left_s).unwrap_or(0))
    }

    async fn obtain(&self) -> anyhow::Result<Certificate> {
        let data = DataDir::open(&self.folder)?;
        let account = self.account(&data).await.context("no account at the authority")?;
        let identifiers: Vec<Identifier> = self.config.domains.iter().cloned().map(Identifier::Dns).collect();
        let order = account.new_order(&NewOrder::new(&identifiers)).await;
        let mut order = order.context("the authority rejected the order")?;
        let outcome = self.complete(&mut order).await;
        self.served.clear_challenges();
        let pem = outcome?;
        let certificate = Certificate::from_pem(pem.as_bytes(), pem.as_bytes())?;
        // Before it is stored: if that fails, it is served all the same, and no other one is ordered.
        self.install(&certificate);
        data.write_owner_only(CERTIFICATE_FILE, pem.as_bytes())?;
        self.ensure_not_due()?;
        Ok(certificate)
    }

    /// With a wrong clock, each new certificate would be renewed at once.
    fn ensure_not_due(&self) -> anyhow::Result<()> {
        let is_due = self.time_until_renewal().is_zero();
        ensure!(!is_due, "the new certificate is due for renewal already; check the clock of this machine");
        Ok(())
    }

    /// Returns the private key and the certificate with its chain.
    async fn complete(&self, order: &mut Order) -> anyhow::Result<String> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                status => bail!("an authorization is {status:?}"),
            }
            let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
            let mut challenge = challenge.context("the authority offers no tls-alpn-01 challenge")?;
            let host = challenge.identifier().to_string();
            let key_authorization = challenge.key_authorization();
            let answer = challenge_answer(&host, key_authorization.digest().as_ref())?;
            self.served.answer_challenge(host, answer);
            challenge.set_ready().await?;
        }
        let status = order
            .poll_ready(&ORDER_POLLING)
            .await
            .context("the authority could not validate the host names")?;
        ensure!(
            status == OrderStatus::Ready,
            "the authority could not validate the host names (order {status:?}); port 443 of each must reach a listener of this server"
        );
        let private_key =
            order.finalize().await.context("the authority rejected the request for a certificate")?;
        let chain =
            order.poll_certificate(&ORDER_POLLING).await.context("the authority sent no certificate")?;
        Ok(format!("{}\n{chain}", private_key.trim_end()))
    }

    /// Creates the account once. To use an authority is to agree to its terms.
    async fn account(&self, data: &DataDir) -> anyhow::Result<Account> {
        let builder = || anyhow::Ok(Account::builder_with_http(Box::new(AcmeClient::new()?)));
        let stored = data.join(ACCOUNT_FILE);
        if stored.exists() {
            let text = secret_file::read_text(&stored);
            let text = text.with_context(|| format!("cannot use {}", stored.display()))?;
            let credentials: AccountCredentials = serde_json::from_str(&text)
                .with_context(|| format!("{} is not valid; delete it", stored.display()))?;
            return Ok(builder()?.from_credentials(credentials).await?);
        }
        let contact = self.config.contact.as_ref().map(|address| format!("mailto:{address}"));
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let created = builder()?.create(&new, self.config.directory.clone(), None).await;
        let (account, credentials) = created?;
        data.write_owner_only(ACCOUNT_FILE, &serde_json::to_vec(&credentials)?)?;
        Ok(account)
    }

    fn install(&self, certificate: &Certificate) {
        if let Some(end_entity) = certificate.end_entity() {
            self.own_certificates.trust(self.config.section, end_entity.clone());
        }
        self.served.replace(certificate);
    }
}

/// Other host names or another authority need another certificate.
fn folder(config: &AcmeConfig, data: &Path) -> PathBuf {
    let mut hash = Sha256::new().chain_update(&config.directory);
    for domain in &config.domains {
        hash.update(b"\n");
        hash.update(domain);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let name: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    data.join(FOLDER).join(name)
}

/// The file in which the certificate is stored.
pub fn stored_certificate(config: &AcmeConfig, data: &Path) -> PathBuf {
    folder(config, data).join(CERTIFICATE_FILE)
}

fn renewal_time_s([valid_from_s, expires_at_s]: [i64; 2]) -> i64 {
    expires_at_s - (expires_at_s - valid_from_s) / RENEWAL_SHARE
}

/// A self-signed certificate with the digest of the challenge's key authorization.
fn challenge_answer(host: &str, digest: &[u8]) -> anyhow::Result<CertifiedKey> {
    ensure!(digest.len() == 32, "the challenge has no SHA-256 digest");
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    // Not checked against the certificate: the extension is critical, and unknown to the parser.
    let key = default_provider().key_provider.load_private_key(key)?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::ManualClock;
    use std::os::unix::fs::PermissionsExt;

    const DAY_S: i64 = 24 * 60 * 60;

    fn config(domains: &[&str]) -> AcmeConfig {
        AcmeConfig {
            section: "tls",
            domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
            contact: None,
            directory: "https://127.0.0.1:1/dir".to_owned(),
        }
    }

    #[test]
    fn certificate_is_renewed_when_a_third_of_its_validity_is_left() {
        assert_eq!(renewal_time_s([0, 90 * DAY_S]), 60 * DAY_S);
        assert_eq!(renewal_time_s([10 * DAY_S, 16 * DAY_S]), 14 * DAY_S);
    }

    #[test]
    fn stored_certificate_is_served_and_is_that_of_its_host_names() {
        let data = tempfile::tempdir().unwrap();
        let config_of_two = config(&["a.example.com", "b.example.com"]);
        let issued = rcgen::generate_simple_self_signed(config_of_two.domains.clone()).unwrap();
        let stored = stored_certificate(&config_of_two, data.path());
        std::fs::create_dir_all(stored.parent().unwrap()).unwrap();
        std::fs::write(&stored, issued.signing_key.serialize_pem() + &issued.cert.pem()).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&stored, PermissionsExt::from_mode(mode)).unwrap();
        set_mode(0o600);
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let load = |config: &AcmeConfig| {
            AcmeCertificate::load(config, data.path(), &OwnCertificates::default(), clock.clone()).unwrap()
        };
        let loaded = load(&config_of_two);
        assert!(loaded.served().expires_at_s().is_some());
        assert!(loaded.time_until_renewal() > CHECK_INTERVAL);
        let other = load(&config(&["a.example.com"]));
        assert_eq!((other.served().expires_at_s(), other.time_until_renewal()), (None, Duration::ZERO));
        set_mode(0o644);
        let own = OwnCertificates::default();
        let error = AcmeCertificate::load(&config_of_two, data.path(), &own, clock.clone()).err().unwrap();
        assert!(format!("{error:#}").contains("other users can read"), "{error:#}");
    }

    #[test]
    fn new_certificate_that_is_due_already_is_an_error() {
        let data = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let own = OwnCertificates::default();
        let acme = AcmeCertificate::load(&config(&["a.example.com"]), data.path(), &own, clock);
        let acme = acme.unwrap();
        for (last_year, is_due) in [(2028, false), (2026, true)] {
            let mut params = CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(2025, 1, 1);
            params.not_after = rcgen::date_time_ymd(last_year, 12, 31);
            let key = KeyPair::generate().unwrap();
            let pem = key.serialize_pem() + &params.self_signed(&key).unwrap().pem();
            acme.install(&Certificate::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap());
            assert_eq!(acme.ensure_not_due().is_err(), is_due, "{last_year}");
        }
    }

    #[test]
    fn challenge_answer_has_the_host_and_the_digest() {
        let answer = challenge_answer("a.example.com", &[7; 32]).unwrap();
        let text = answer.cert[0].as_ref();
        let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
        assert!(has(b"a.example.com") && has(&[7; 32]));
        assert!(challenge_answer("a.example.com", &[7; 20]).is_err());
    }
}
