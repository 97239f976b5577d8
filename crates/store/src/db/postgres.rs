//! Connects to a PostgreSQL database that several nodes may share. Every wait is bounded: an unreachable server is an error
//! within seconds, never a hang.

pub(crate) use super::url::PostgresOptions;

use super::error_codes::{QueryError, is_unreachable, map_db_error};
use super::url::{DatabaseLocation, Pem, TlsMode, TlsOptions};
use crate::{DatabaseUrl, DbError, OpenError};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Client;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, TlsConnect};
use tokio_rustls::TlsConnector;

/// Longest wait for a new connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of every session. A commit must be on disk when it returns, so `synchronous_commit = off` is overridden;
/// stricter settings (`remote_apply`) are left alone. A statement that waited for a lock must see what its last holder
/// did, which requires read committed isolation.
fn session(statement_timeout: Duration) -> String {
    format!(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
         SET default_transaction_isolation = 'read committed'; \
         SET statement_timeout = '{}s'; \
         SET idle_in_transaction_session_timeout = '10s'",
        statement_timeout.as_secs()
    )
}

/// The server as messages name it.
pub(crate) fn location(options: &PostgresOptions) -> String {
    format!("PostgreSQL at {}", options.address())
}

/// For the first connection to a server. Its errors name the server.
pub(crate) async fn connect_first(options: &PostgresOptions) -> Result<Client, OpenError> {
    connect(options).await.map_err(|error| with_location(options, &error).into())
}

pub(super) fn with_location(options: &PostgresOptions, error: &QueryError) -> DbError {
    match map_db_error(error) {
        DbError::Unavailable(why) => DbError::Unavailable(format!("{}: {why}", location(options))),
        other => other,
    }
}

pub(crate) async fn begin_session(client: &Client, statement_timeout: Duration) -> Result<(), QueryError> {
    Ok(client.batch_execute(&session(statement_timeout)).await?)
}

pub(crate) async fn bounded<T>(step: impl Future<Output = Result<T, QueryError>>) -> Result<T, QueryError> {
    let timed_out = QueryError::TimedOut { limit: CONNECT_TIMEOUT };
    tokio::time::timeout(CONNECT_TIMEOUT, step).await.unwrap_or(Err(timed_out))
}

/// Connects. The connection is a task of the current runtime, which ends when the client is dropped.
pub(crate) async fn connect(options: &PostgresOptions) -> Result<Client, QueryError> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect_unbounded(options)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let why = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
            Err(QueryError::CannotConnect { why, may_pass: true })
        }
    }
}

async fn connect_unbounded(options: &PostgresOptions) -> Result<Client, QueryError> {
    let stream = connect_socket(options)
        .await
        .map_err(|error| QueryError::CannotConnect { why: error.to_string(), may_pass: may_pass(&error) })?;
    let mut config = tokio_postgres::Config::new();
    // Without a password, the server says that it needs one.
    config.user(&options.user).password(options.password.as_deref().unwrap_or_default());
    config.application_name("chancery").ssl_mode(match options.tls.mode {
        TlsMode::Disable | TlsMode::Allow => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    if let Some(database) = &options.database {
        config.dbname(database);
    }
    if let Some(settings) = &options.settings {
        config.options(settings);
    }
    let tls = Tls { options: options.tls.clone(), host: options.host.clone() };
    let (client, connection) = config.connect_raw(stream, tls).await.map_err(cannot_connect)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to postgres ended");
        }
    });
    Ok(client)
}

async fn connect_socket(options: &PostgresOptions) -> io::Result<Stream> {
    if let Some(folder) = options.socket_folder() {
        let socket = folder.join(format!(".s.PGSQL.{}", options.port));
        return Ok(Stream(Box::new(UnixStream::connect(socket).await?)));
    }
    let stream = TcpStream::connect((options.host.as_str(), options.port)).await?;
    stream.set_nodelay(true)?;
    Ok(Stream(Box::new(stream)))
}

/// A certificate that is rejected is invalid data.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, PermissionDenied};
    !matches!(error.kind(), InvalidData | InvalidInput | PermissionDenied)
}

fn cannot_connect(error: tokio_postgres::Error) -> QueryError {
    if error.as_db_error().is_some() {
        return error.into();
    }
    match error.source() {
        Some(cause) => QueryError::CannotConnect {
            why: format!("{error}: {cause}"),
            may_pass: cause.downcast_ref::<io::Error>().is_some_and(may_pass),
        },
        // A proxy without a server behind it closes the connection, or sends something else.
        None => QueryError::CannotConnect { why: error.to_string(), may_pass: true },
    }
}

/// TLS for one connection.
struct Tls {
    options: TlsOptions,
    host: String,
}

impl TlsConnect<Stream> for Tls {
    type Stream = Stream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Self::Error>> + Send>>;

    fn connect(self, stream: Stream) -> Self::Future {
        Box::pin(async move {
            let connector = TlsConnector::from(Arc::new(client_config(&self.options)?));
            let name = ServerName::try_from(self.host)?;
            Ok(Stream(Box::new(connector.connect(name, stream).await?)))
        })
    }
}

fn client_config(options: &TlsOptions) -> Result<ClientConfig, Box<dyn Error + Send + Sync>> {
    let provider = Arc::new(ring::default_provider());
    let issuers: Option<Arc<dyn ServerCertVerifier>> = match &options.roots {
        _ if options.mode < TlsMode::VerifyCa => None,
        None => Some(Arc::new(rustls_platform_verifier::Verifier::new(Arc::clone(&provider))?)),
        Some(roots) => Some(verifier_of(roots, &provider)?),
    };
    // Apple may report a wrong name before it has looked at the issuer.
    let is_name_checked_last = options.roots.is_some() || cfg!(not(target_vendor = "apple"));
    let verifier = ServerVerifier {
        issuers,
        ignores_name: options.mode == TlsMode::VerifyCa && is_name_checked_last,
        algorithms: provider.signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    match (&options.certificate, &options.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let chain = read_certificates("sslcert", certificate)?;
            let key = PrivateKeyDer::from_pem_slice(&read_pem("sslkey", key)?);
            Ok(builder.with_client_auth_cert(chain, key.map_err(|error| format!("sslkey: {error}"))?)?)
        }
        _ => Err("`sslcert` and `sslkey` must be given together".into()),
    }
}

fn verifier_of(
    roots: &Pem,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Box<dyn Error + Send + Sync>> {
    let mut store = RootCertStore::empty();
    for certificate in read_certificates("sslrootcert", roots)? {
        store.add(certificate).map_err(|error| format!("sslrootcert: {error}"))?;
    }
    Ok(WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider)).build()?)
}

fn read_certificates(parameter: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read_pem(parameter, pem)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("{parameter}: there is no certificate in it"))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("{parameter}: {error}")),
    }
}

fn read_pem(parameter: &str, pem: &Pem) -> Result<Vec<u8>, String> {
    match pem {
        Pem::Text(text) => Ok(text.clone().into_bytes()),
        Pem::File(file) => {
            std::fs::read(file).map_err(|error| format!("{parameter}: {}: {error}", file.display()))
        }
    }
}

#[derive(Debug)]
struct ServerVerifier {
    /// `None` accepts all certificates.
    issuers: Option<Arc<dyn ServerCertVerifier>>,
    ignores_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(issuers) = &self.issuers else { return Ok(ServerCertVerified::assertion()) };
        match issuers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last: everything else is right.
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
                if self.ignores_name =>
            {
                Ok(ServerCertVerified::assertion())
            }
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// A connection to the server, with TLS or without.
struct Stream(Box<dyn Socket>);

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

impl tokio_postgres::tls::TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The texts contain no password.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{location} is not reachable: {why}")]
    Unreachable { location: String, why: String },
    #[error("{location} rejects the connection: {why}")]
    Rejected { location: String, why: String },
}

/// Connects once, for a server that starts: a database that cannot be reached may come up later, one that rejects us will do so
/// again. A SQLite file needs no server, so there is nothing to wait for.
pub async fn probe(url: &DatabaseUrl) -> Result<(), ProbeError> {
    let DatabaseLocation::Postgres(options) = &url.0 else { return Ok(()) };
    let Err(error) = connect(options).await else { return Ok(()) };
    let why = match map_db_error(&error) {
        DbError::Unavailable(why) => why,
        other => other.to_string(),
    };
    let location = location(options);
    Err(if is_unreachable(&error) {
        ProbeError::Unreachable { location, why }
    } else {
        ProbeError::Rejected { location, why }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DatabaseUrl;
    use crate::db::error_codes::is_unreachable;
    use crate::db::url::DatabaseLocation;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::ServerConfig;
    use std::path::Path;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    /// `AuthenticationOk` and `ReadyForQuery`.
    const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

    /// Issues certificates. Writes its own to a file.
    fn authority(file: &Path) -> Issuer<'static, KeyPair> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, file.display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(file, params.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(params, key)
    }

    /// Serves clients one after another with a certificate for that name. Returns its port.
    async fn tls_server(issuer: &Issuer<'static, KeyPair>, name: &str) -> u16 {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            );
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 8];
                stream.read_exact(&mut request).await.unwrap();
                stream.write_all(b"S").await.unwrap();
                // A client that rejects the certificate breaks the handshake.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = welcome(&mut stream).await;
            }
        });
        port
    }

    /// Accepts the login that a client sends, and waits for the client to leave.
    async fn welcome(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
        let length = stream.read_u32().await?;
        stream.read_exact(&mut vec![0; length as usize - 4]).await?;
        stream.write_all(WELCOME).await?;
        stream.flush().await?;
        stream.read_to_end(&mut Vec::new()).await.map(|_| ())
    }

    async fn try_connect(port: u16, parameters: &str) -> Result<(), QueryError> {
        let url = format!("postgres://ann:hunter2@127.0.0.1:{port}/firm?{parameters}");
        let DatabaseLocation::Postgres(options) = url.parse::<DatabaseUrl>().unwrap().0 else { panic!() };
        let outcome = connect(&options).await.map(|_| ());
        if let Err(error) = &outcome {
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        outcome
    }

    /// Why the server is rejected for good.
    async fn rejection(port: u16, parameters: &str) -> String {
        let error = try_connect(port, parameters).await.unwrap_err();
        assert!(!is_unreachable(&error), "{parameters}: {error:?}");
        error.to_string()
    }

    #[tokio::test]
    async fn certificate_is_verified_as_the_mode_says() {
        let folder = tempfile::tempdir().unwrap();
        let (known, unknown) = (folder.path().join("known.pem"), folder.path().join("unknown.pem"));
        let issuer = authority(&known);
        authority(&unknown);
        let (known, unknown) = (known.display(), unknown.display());
        let right = tls_server(&issuer, "127.0.0.1").await;
        let wrong_name = tls_server(&issuer, "db.example").await;
        for (port, parameters) in [
            (right, format!("sslmode=verify-full&sslrootcert={known}")),
            (right, format!("sslmode=verify-ca&sslrootcert={known}")),
            (wrong_name, format!("sslmode=verify-ca&sslrootcert={known}")),
            (wrong_name, format!("sslmode=require&sslrootcert={unknown}")),
            (right, "sslmode=require".to_owned()),
            (wrong_name, "sslmode=prefer".to_owned()),
        ] {
            try_connect(port, &parameters).await.unwrap_or_else(|error| panic!("{parameters}: {error:?}"));
        }
        for (port, parameters, why) in [
            (wrong_name, format!("sslmode=verify-full&sslrootcert={known}"), "not valid for name"),
            (right, format!("sslmode=verify-full&sslrootcert={unknown}"), "UnknownIssuer"),
            (right, format!("sslmode=verify-ca&sslrootcert={unknown}"), "UnknownIssuer"),
            (wrong_name, format!("sslmode=verify-ca&sslrootcert={unknown}"), "UnknownIssuer"),
            (right, "sslmode=verify-ca".to_owned(), "UnknownIssuer"),
            (right, "sslmode=verify-full".to_owned(), "UnknownIssuer"),
            (right, format!("sslmode=verify-full&sslrootcert={known}.not"), "sslrootcert: "),
            (right, format!("sslmode=require&sslcert={known}"), "`sslcert` and `sslkey`"),
            (right, format!("sslmode=require&sslcert={known}&sslkey={known}"), "sslkey: "),
        ] {
            let text = rejection(port, &parameters).await;
            assert!(text.contains(why), "{parameters}: {text}");
        }
    }

    #[tokio::test]
    async fn only_weak_modes_accept_a_server_without_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut start = [0; 8];
                stream.peek(&mut start).await.unwrap();
                // An `SSLRequest`, which has no parameters.
                if start[..4] == 8_u32.to_be_bytes() {
                    stream.read_exact(&mut start).await.unwrap();
                    stream.write_all(b"N").await.unwrap();
                }
                let _ = welcome(&mut stream).await;
            }
        });
        for mode in ["disable", "allow", "prefer"] {
            try_connect(port, &format!("sslmode={mode}")).await.unwrap();
        }
        for mode in ["require", "verify-ca", "verify-full"] {
            let text = rejection(port, &format!("sslmode={mode}")).await;
            assert!(text.contains("server does not support TLS"), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_may_come_back_is_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let silent = try_connect(port, "").await.unwrap_err();
        assert!(is_unreachable(&silent) && silent.to_string().contains("within 5 s"), "{silent:?}");
        let (closed, _) = tokio::join!(try_connect(port, ""), async { drop(listener.accept().await) });
        assert!(is_unreachable(&closed.unwrap_err()));
        drop(listener);
        for parameters in ["", "host=/no/such/folder", "host=no.such.host.invalid"] {
            let error = try_connect(port, parameters).await.unwrap_err();
            assert!(is_unreachable(&error), "{parameters}: {error:?}");
            assert!(map_db_error(&error).to_string().contains("`database.url`"), "{error:?}");
        }
    }
}
