//! `[tls]`, and `[api.tls]`, `[portal.tls]` and `[auth.tls]`, each of which replaces it for its listener. The operations listener
//! has no TLS: bind it to an address that only operators can reach.

use super::bounds;
use super::reader::Reader;
use super::upstream::path;
use chancery_domain::EmailAddress;
use std::path::{Path, PathBuf};

/// Let's Encrypt.
const DEFAULT_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The certificate of each listener; `None`: the listener has no TLS.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    pub api: Option<TlsSource>,
    pub portal: Option<TlsSource>,
    pub auth: Option<TlsSource>,
}

/// Where a listener's certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    Files(CertificateFiles),
    Acme(AcmeConfig),
}

impl TlsSource {
    /// The section that names it, for messages.
    pub fn section(&self) -> &'static str {
        match self {
            Self::Files(files) => files.section,
            Self::Acme(acme) => acme.section,
        }
    }
}

/// PEM files. They are read again on SIGHUP and when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub section: &'static str,
    /// The certificate, followed by those that lead to its authority.
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

/// A certificate that the server itself gets from an authority, and renews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeConfig {
    pub section: &'static str,
    /// In lower case.
    pub domains: Vec<String>,
    /// Whom the authority writes to about the certificate.
    pub contact: Option<EmailAddress>,
    /// The URL of the authority's directory.
    pub directory: String,
}

pub fn tls(reader: &mut Reader, folder: &Path) -> Tls {
    let every = section(reader, folder, "tls");
    let mut listener = |name| section(reader, folder, name).or_else(|| every.clone());
    Tls { api: listener("api.tls"), portal: listener("portal.tls"), auth: listener("auth.tls") }
}

/// Returns the scheme of a listener's URL.
pub fn scheme(tls: Option<&TlsSource>) -> &'static str {
    if tls.is_some() { "https" } else { "http" }
}

/// A public URL without TLS contradicts a listener with TLS.
pub fn check_scheme(reader: &mut Reader, key: &str, url: Option<&str>, tls: Option<&TlsSource>) {
    if let (Some(tls), true) = (tls, url.is_some_and(|url| url.starts_with("http://"))) {
        reader.problem(key, format!("must be https://, because [{}] is set", tls.section()));
    }
}

fn section(reader: &mut Reader, folder: &Path, section: &'static str) -> Option<TlsSource> {
    let [certificate_key, private_key_key] =
        ["certificate", "private_key"].map(|name| format!("{section}.{name}"));
    let certificate = path(reader, folder, &certificate_key);
    let private_key = path(reader, folder, &private_key_key);
    let acme = acme(reader, section);
    if acme.is_some() && (certificate.is_some() || private_key.is_some()) {
        let acme_key = format!("{section}.acme.domains");
        reader.problem(&acme_key, format!("remove it, or remove {certificate_key} and {private_key_key}"));
        return None;
    }
    match (certificate, private_key) {
        (Some(certificate), Some(private_key)) => {
            Some(TlsSource::Files(CertificateFiles { section, certificate, private_key }))
        }
        (Some(_), None) => {
            let fix = "set it to the PEM file with the certificate's private key";
            reader.problem(&private_key_key, format!("required with {certificate_key}: {fix}"));
            None
        }
        (None, Some(_)) => {
            let fix = "set it to the PEM file with the certificate and its chain";
            reader.problem(&certificate_key, format!("required with {private_key_key}: {fix}"));
            None
        }
        (None, None) => acme.map(TlsSource::Acme),
    }
}

fn acme(reader: &mut Reader, section: &'static str) -> Option<AcmeConfig> {
    let [domains_key, contact_key, directory_key] =
        ["domains", "contact", "directory"].map(|name| format!("{section}.acme.{name}"));
    let domains = reader.texts(&domains_key);
    let contact = reader.optional_text(&contact_key);
    let directory = reader.optional_text(&directory_key);
    if domains.is_empty() {
        if contact.is_some() || directory.is_some() {
            let fix = "set it to the host names of the certificate, such as [\"api.example.com\"]";
            reader.problem(&domains_key, format!("required with {section}.acme: {fix}"));
        }
        return None;
    }
    let domains: Vec<String> = domains.iter().map(|domain| domain.to_ascii_lowercase()).collect();
    for domain in &domains {
        if !is_host_name(domain) {
            reader.problem(
                &domains_key,
                format!(
                    "{domain:?} is not a host name; use a name such as \"api.example.com\", without wildcard"
                ),
            );
        }
    }
    if domains.len() > bounds::ACME_DOMAINS {
        reader.problem(&domains_key, format!("at most {} host names", bounds::ACME_DOMAINS));
    }
    let contact = contact.and_then(|text| match text.trim_start_matches("mailto:").parse::<EmailAddress>() {
        Ok(contact) => Some(contact),
        Err(error) => {
            reader.problem(&contact_key, format!("{text:?}: {error}"));
            None
        }
    });
    let directory = directory.unwrap_or_else(|| DEFAULT_DIRECTORY.to_owned());
    if !directory.starts_with("https://") {
        reader.problem(&directory_key, "must be an https:// URL, such as the one of Let's Encrypt");
    }
    Some(AcmeConfig { section, domains, contact, directory })
}

/// Authorities validate names with a dot only.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253
        && text.contains('.')
        && text.split('.').all(is_label)
        && text.parse::<std::net::IpAddr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::{CertificateFiles, DEFAULT_DIRECTORY, TlsSource};
    use crate::config::source::Source;
    use crate::config::{Config, Loaded};
    use std::path::Path;

    const TLS: &str = "[tls]\ncertificate = \"c\"\nprivate_key = \"k\"\n";

    fn read(text: &str) -> Result<Config, String> {
        let mut source = Source::default();
        source.add_file(Path::new("chancery.toml"), text).unwrap();
        let loaded = Loaded::from_source(source, Path::new("etc"), None);
        loaded.map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    fn files(tls: Option<TlsSource>) -> CertificateFiles {
        match tls {
            Some(TlsSource::Files(files)) => files,
            other => panic!("no files: {other:?}"),
        }
    }

    #[test]
    fn section_of_a_listener_replaces_the_common_one() {
        let tls = read(
            "[tls]\ncertificate = \"all.pem\"\nprivate_key = \"/keys/all.key\"\n\
             [portal.tls]\ncertificate = \"portal.pem\"\nprivate_key = \"portal.key\"",
        )
        .unwrap()
        .tls;
        let (api, portal, auth) = (files(tls.api), files(tls.portal), files(tls.auth));
        assert_eq!((api.section, api.certificate.as_path()), ("tls", Path::new("etc/all.pem")));
        assert_eq!(api.private_key, Path::new("/keys/all.key"));
        assert_eq!(api, auth);
        assert_eq!(
            (portal.section, portal.private_key.as_path()),
            ("portal.tls", Path::new("etc/portal.key"))
        );
    }

    #[test]
    fn listeners_without_a_section_have_no_tls() {
        let config = read("[api.tls]\ncertificate = \"c\"\nprivate_key = \"k\"").unwrap();
        assert!(config.tls.api.is_some() && config.tls.portal.is_none() && config.tls.auth.is_none());
        let config = read("[tls]\n").unwrap();
        assert!(config.tls.api.is_none());
    }

    #[test]
    fn acme_has_lets_encrypt_as_its_default_directory() {
        let text = "[tls]\nacme = { domains = [\"API.example.com\"], contact = \"mailto:ops@example.com\" }";
        let Some(TlsSource::Acme(acme)) = read(text).unwrap().tls.portal else { panic!("no ACME") };
        assert_eq!((acme.section, acme.domains.as_slice()), ("tls", &["api.example.com".to_owned()][..]));
        assert_eq!(acme.contact.unwrap().to_string(), "ops@example.com");
        assert_eq!(acme.directory, DEFAULT_DIRECTORY);
    }

    #[test]
    fn tls_mistakes_name_the_key_and_the_fix() {
        for (text, part) in [
            ("[tls]\ncertificate = \"c\"".to_owned(), "tls.private_key: required with tls.certificate"),
            (
                "[auth.tls]\nprivate_key = \"k\"".to_owned(),
                "auth.tls.certificate: required with auth.tls.private_key",
            ),
            ("[ops.tls]\ncertificate = \"c\"".to_owned(), "line 2: ops.tls.certificate: unknown key"),
            (
                "[tls]\ncertificat = \"c\"".to_owned(),
                "line 2: tls.certificat: unknown key; did you mean tls.certificate?",
            ),
            (
                format!("{TLS}[api]\npublic_url = \"http://api.example.com\""),
                "line 5: api.public_url: must be https://, because [tls] is set",
            ),
            (
                format!("{TLS}[portal]\npublic_url = \"http://localhost:8081\""),
                "line 5: portal.public_url: must be https://, because [tls] is set",
            ),
            (
                format!("{TLS}acme = {{ domains = [\"api.example.com\"] }}"),
                "line 4: tls.acme.domains: remove it, or remove tls.certificate and tls.private_key",
            ),
            (
                "[tls]\nacme = { contact = \"a@b.example\" }".to_owned(),
                "tls.acme.domains: required with tls.acme",
            ),
            (
                "[tls]\nacme = { domains = [\"*.example.com\"] }".to_owned(),
                "tls.acme.domains: \"*.example.com\" is not a host name",
            ),
            ("[tls]\nacme = { domains = [\"127.0.0.1\"] }".to_owned(), "is not a host name"),
            ("[tls]\nacme = { domains = [\"localhost\"] }".to_owned(), "is not a host name"),
            (
                "[tls]\nacme = { domains = [\"a.example\"], contact = \"ops\" }".to_owned(),
                "tls.acme.contact: \"ops\": an address has exactly one `@`",
            ),
            (
                "[tls]\nacme = { domains = [\"a.example\"], directory = \"http://ca/dir\" }".to_owned(),
                "tls.acme.directory: must be an https:// URL",
            ),
        ] {
            let problem = read(&text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn built_in_provider_with_tls_is_its_own_issuer() {
        let is_enabled = |text: &str| read(text).unwrap().auth.is_enabled;
        assert!(is_enabled(&format!("{TLS}[identity]\nissuer = \"https://127.0.0.1:8082\"")));
        assert!(!is_enabled("[identity]\nissuer = \"https://127.0.0.1:8082\""));
    }
}
