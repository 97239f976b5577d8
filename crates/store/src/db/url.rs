//! Which database to open. Neither `Debug` nor any error of this file shows a password.

use crate::OpenError;
use chancery_domain::is_loopback_host;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

const DEFAULT_PORT: u16 = 5432;

/// `sqlite:PATH`, `postgres://…` or `postgresql://…`.
#[derive(Clone)]
pub struct DatabaseUrl(pub(crate) DatabaseLocation);

#[derive(Clone)]
pub(crate) enum DatabaseLocation {
    Sqlite(PathBuf),
    Postgres(Box<PostgresOptions>),
}

/// How to reach a PostgreSQL server. It has no `Debug`, because of the password.
#[derive(Clone)]
pub(crate) struct PostgresOptions {
    /// A name, an address, or the folder of a Unix socket.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: Option<String>,
    /// Settings of the session: `-c NAME=VALUE …`.
    pub(super) settings: Option<String>,
    pub(super) tls: TlsOptions,
}

#[derive(Clone)]
pub(super) struct TlsOptions {
    pub(super) mode: TlsMode,
    /// Trusted issuers. `None`: those that the machine trusts.
    pub(super) roots: Option<Pem>,
    /// The client's certificate with its key.
    pub(super) certificate: Option<Pem>,
    pub(super) key: Option<Pem>,
}

chancery_domain::closed_enum! {
    /// libpq's `sslmode`, from the weakest to the strongest.
    pub(super) enum TlsMode {
        Disable = "disable",
        /// Clear text. libpq would use TLS if the server rejects it.
        Allow = "allow",
        Prefer = "prefer",
        Require = "require",
        VerifyCa = "verify-ca",
        VerifyFull = "verify-full",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pem {
    File(PathBuf),
    Text(String),
}

impl DatabaseUrl {
    /// The SQLite file at this path, which may contain any characters.
    pub fn sqlite_file(file: &Path) -> Self {
        Self(DatabaseLocation::Sqlite(file.to_owned()))
    }

    /// The host, if it is another machine and TLS is not required: with PostgreSQL's default, a server without TLS, or somebody on
    /// the way, decides that everything is sent in clear text.
    pub fn cleartext_host(&self) -> Option<&str> {
        let DatabaseLocation::Postgres(options) = &self.0 else { return None };
        let is_local = options.socket_folder().is_some() || is_loopback_host(&options.host);
        (!is_local && options.tls.mode < TlsMode::Require).then_some(&options.host)
    }

    /// Whether several machines can share the database.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, DatabaseLocation::Postgres(_))
    }
}

impl FromStr for DatabaseUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| OpenError::BadUrl("the database URL has no scheme".to_owned()))?;
        match scheme {
            "sqlite" => sqlite_path(rest).map(|file| Self(DatabaseLocation::Sqlite(file))),
            "postgres" | "postgresql" => match rest.strip_prefix("//") {
                Some(rest) => {
                    Ok(Self(DatabaseLocation::Postgres(Box::new(PostgresOptions::parse(rest.trim_end())?))))
                }
                None => Err(OpenError::BadUrl(format!("`{scheme}:` must be followed by `//`"))),
            },
            // A mistyped URL may begin with a secret, so only what looks like a scheme is repeated.
            _ if scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                Err(OpenError::BadUrl(format!("unsupported database scheme {scheme:?}")))
            }
            _ => Err(OpenError::BadUrl("the database URL has no scheme".to_owned())),
        }
    }
}

fn sqlite_path(rest: &str) -> Result<PathBuf, OpenError> {
    // `sqlite:///var/x.db` and `sqlite:/var/x.db` both mean /var/x.db, because other tools use either form.
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return Err(OpenError::BadUrl("the SQLite URL has no file name".to_owned()));
    }
    if path.contains(":memory:") {
        return Err(OpenError::BadUrl("an in-memory database would lose the ledger; use a file".to_owned()));
    }
    if path.contains('\0') {
        return Err(OpenError::BadUrl("the SQLite URL contains a NUL character".to_owned()));
    }
    Ok(PathBuf::from(path))
}

/// For logs: the address, never the password.
impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DatabaseLocation::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            DatabaseLocation::Postgres(options) => {
                let address = options.address().replace('/', "%2F");
                write!(f, "postgres://{address}/{}", options.database.as_deref().unwrap_or_default())
            }
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

/// Looks up an environment variable.
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl PostgresOptions {
    /// Reads `[USER[:PASSWORD]@][HOST][:PORT][/DATABASE][?PARAMETERS]`. What the URL leaves open comes from libpq's environment
    /// variables, and the password from `~/.pgpass`.
    fn parse(url: &str) -> Result<Self, OpenError> {
        // The reasons do not quote the URL.
        let mut options = Self::read(url, &|name| std::env::var(name).ok())
            .map_err(|why| OpenError::BadUrl(format!("invalid PostgreSQL URL: {why}")))?;
        if options.password.is_none() {
            options.password = options.password_file_entry();
        }
        Ok(options)
    }

    fn read(url: &str, environment: Environment<'_>) -> Result<Self, &'static str> {
        let (url, _fragment) = url.split_once('#').unwrap_or((url, ""));
        let (url, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (authority, database) = url.split_once('/').unwrap_or((url, ""));
        let (login, address) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, port) = split_address(address)?;
        let mut host = given(decode(host)?);
        if host.as_ref().is_some_and(|host| host.contains(|c: char| c.is_whitespace() || c.is_control())) {
            return Err("the host name contains a space or a control character");
        }
        let mut port = given(port.to_owned()).map(|port| parse_port(&port)).transpose()?;
        let (mut user, mut password) = (given(decode(user)?), given(decode(password)?));
        let mut database = given(decode(database.trim_start_matches('/'))?);
        let mut settings = environment("PGOPTIONS");
        let mut tls = TlsOptions {
            mode: environment("PGSSLMODE")
                .and_then(|mode| TlsMode::parse(&mode.to_ascii_lowercase()))
                .unwrap_or(TlsMode::Prefer),
            roots: environment("PGSSLROOTCERT").map(Pem::from),
            certificate: environment("PGSSLCERT").map(Pem::from),
            key: environment("PGSSLKEY").map(Pem::from),
        };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let (name, value) = (decode(&name.replace('+', " "))?, decode(&value.replace('+', " "))?);
            match name.as_str() {
                "sslmode" | "ssl-mode" => {
                    tls.mode = TlsMode::parse(&value.to_ascii_lowercase()).ok_or(UNKNOWN_TLS_MODE)?;
                }
                "sslrootcert" | "ssl-root-cert" | "ssl-ca" => tls.roots = Some(Pem::from(value)),
                "sslcert" | "ssl-cert" => tls.certificate = Some(Pem::from(value)),
                "sslkey" | "ssl-key" => tls.key = Some(Pem::from(value)),
                "host" => host = given(value),
                "hostaddr" if value.parse::<IpAddr>().is_ok() => host = Some(value),
                "hostaddr" => return Err("`hostaddr` is not an IP address"),
                "port" => port = Some(parse_port(&value)?),
                "dbname" => database = Some(value),
                "user" => user = Some(value),
                "password" => password = Some(value),
                "options" => add_setting(&mut settings, &value),
                // The sessions are always named `chancery`, and prepared statements are counted by us.
                "application_name" | "statement-cache-capacity" => {}
                _ => match name.strip_prefix("options[").and_then(|name| name.strip_suffix(']')) {
                    Some(name) => add_setting(&mut settings, &format!("-c {}", escape(name, &value))),
                    None => warn_unknown(&name),
                },
            }
        }
        let port = port.or_else(|| environment("PGPORT")?.parse().ok()).unwrap_or(DEFAULT_PORT);
        let host = host.or_else(|| environment("PGHOSTADDR")).or_else(|| environment("PGHOST"));
        let user = user.or_else(|| environment("PGUSER")).or_else(|| whoami::username().ok());
        Ok(Self {
            host: host.unwrap_or_else(|| default_host(port)),
            port,
            user: user.unwrap_or_else(|| "unknown".to_owned()),
            password: password.or_else(|| environment("PGPASSWORD")),
            database: database.or_else(|| environment("PGDATABASE")),
            settings,
            tls,
        })
    }

    pub(super) fn socket_folder(&self) -> Option<&Path> {
        self.host.starts_with('/').then(|| Path::new(&self.host))
    }

    /// `HOST:PORT`, for messages.
    pub(super) fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The password in the file that `PGPASSFILE` names, or in `~/.pgpass`.
    fn password_file_entry(&self) -> Option<String> {
        let named = std::env::var_os("PGPASSFILE").map(PathBuf::from);
        let usual = std::env::home_dir().map(|home| home.join(".pgpass"));
        [named, usual].into_iter().flatten().find_map(|file| {
            let text = read_private(&file)?;
            text.lines().find_map(|line| self.password_in(line))
        })
    }

    /// The password in a line of a password file: `HOST:PORT:DATABASE:USER:PASSWORD`. Each of the first four may be `*`, and `\`
    /// stands before a literal `:` or `\`.
    fn password_in(&self, line: &str) -> Option<String> {
        let (mut fields, mut field, mut characters) = (Vec::new(), String::new(), line.chars());
        while let Some(character) = characters.next() {
            match character {
                '\\' => field.extend(characters.next()),
                ':' if fields.len() < 4 => fields.push(std::mem::take(&mut field)),
                _ => field.push(character),
            }
        }
        let [host, port, database, user] = fields.as_slice() else { return None };
        let matches = |field: &str, value: &str| field == "*" || field == value;
        let is_ours = (matches(host, &self.host) || self.socket_folder().is_some() && host == "localhost")
            && matches(port, &self.port.to_string())
            && matches(database, self.database.as_deref().unwrap_or_default())
            && matches(user, &self.user);
        (is_ours && !line.starts_with('#')).then_some(field)
    }
}

const UNKNOWN_TLS_MODE: &str =
    "`sslmode` must be `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`";

impl From<String> for Pem {
    fn from(text: String) -> Self {
        if text.trim_start().starts_with("-----BEGIN") { Self::Text(text) } else { Self::File(text.into()) }
    }
}

/// Separates the host from the port, either of which may be empty.
fn split_address(address: &str) -> Result<(&str, &str), &'static str> {
    let Some(bracketed) = address.strip_prefix('[') else {
        return Ok(address.split_once(':').unwrap_or((address, "")));
    };
    let (host, port) = bracketed.split_once(']').ok_or("a `[` has no `]`")?;
    match host.parse::<Ipv6Addr>() {
        Ok(_) => Ok((host, port.strip_prefix(':').unwrap_or(port))),
        Err(_) => Err("the host in `[…]` is not an IPv6 address"),
    }
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    text.parse()
        .map_err(|_| "the port is not a number up to 65535 (write special characters in the password as %XX)")
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Decodes `%XX`.
fn decode(text: &str) -> Result<String, &'static str> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digit = |place: usize| after.get(place).and_then(|&byte| char::from(byte).to_digit(16));
        match (first, digit(0), digit(1), after) {
            (b'%', Some(high), Some(low), [_, _, after @ ..]) => {
                bytes.push((high * 16 + low) as u8);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| "a part with %XX is not UTF-8")
}

fn add_setting(settings: &mut Option<String>, setting: &str) {
    let settings = settings.get_or_insert_default();
    if !settings.is_empty() {
        settings.push(' ');
    }
    settings.push_str(setting);
}

/// `NAME=VALUE` as one word of `options`.
fn escape(name: &str, value: &str) -> String {
    format!("{name}={value}").replace('\\', "\\\\").replace(' ', "\\ ")
}

/// A part of a mistyped URL may be a secret, so only what looks like a name is repeated.
fn warn_unknown(name: &str) {
    let is_name = name.len() <= 40 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b == b'-');
    let name = if is_name { name } else { "" };
    tracing::warn!(name, "ignoring an unknown parameter of the database URL");
}

/// The folder where distributions put the server's socket, if it is there.
fn default_host(port: u16) -> String {
    let folders = ["/var/run/postgresql", "/private/tmp", "/tmp"];
    let found = folders.iter().find(|folder| Path::new(folder).join(format!(".s.PGSQL.{port}")).exists());
    (*found.unwrap_or(&"localhost")).to_owned()
}

/// The text of a password file that only its owner can read.
fn read_private(file: &Path) -> Option<String> {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(file)
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o77 != 0
    {
        tracing::warn!(file = %file.display(), "ignoring the password file: other users can access it");
        return None;
    }
    match std::fs::read_to_string(file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read the password file");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_chooses_the_database() {
        for (text, shown) in [
            ("sqlite:data/chancery.db", "sqlite:data/chancery.db"),
            ("sqlite:/var/lib/chancery.db", "sqlite:/var/lib/chancery.db"),
            ("sqlite:///var/lib/chancery.db", "sqlite:/var/lib/chancery.db"),
            ("sqlite:odd name?x=1#2 %41.db", "sqlite:odd name?x=1#2 %41.db"),
            ("postgres://ann:secret@db.example:5433/firm", "postgres://db.example:5433/firm"),
            ("postgresql://ann@db.example/firm", "postgres://db.example:5432/firm"),
        ] {
            assert_eq!(text.parse::<DatabaseUrl>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn unsupported_url_error_lists_accepted_forms() {
        for text in ["", "data/chancery.db", "mysql://root@localhost/x", "sqlite:", "sqlite::memory:", "/x:y"]
        {
            let error = text.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite:PATH") && error.contains("postgres://"), "{text:?}: {error}");
        }
    }

    #[test]
    fn password_never_appears_in_errors_or_debug() {
        for text in [
            "postgres://ann:hunter2@db.example:notaport/firm",
            "postgres://ann:hunter2@db.example:99999/firm",
            "postgres://ann:hunter2@/firm?sslmode=hunter2",
            "postgres://ann:hunter2@[::1/firm",
            "postgres://ann:%ff%fehunter2@db.example/firm",
            "postgres:ann:hunter2@db.example/firm",
            "ann:hunter2@db.example/firm",
            "hunter2:x",
        ] {
            let shown = match text.parse::<DatabaseUrl>() {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            // A word before a colon looks like a scheme.
            if !text.starts_with("hunter2") {
                assert!(!shown.contains("hunter2"), "{text:?}: {shown}");
            }
        }
    }

    fn read(url: &str, environment: &[(&str, &str)]) -> PostgresOptions {
        let find = |name: &str| environment.iter().find(|(known, _)| *known == name);
        let url = url.split_once("://").unwrap().1;
        PostgresOptions::read(url, &|name| find(name).map(|(_, value)| (*value).to_owned())).unwrap()
    }

    #[test]
    fn parts_of_the_url_are_decoded() {
        let options = read("postgresql://a%40n:p%2F%3aw%zz+@%64b.example:5433/the%20firm#x", &[]);
        assert_eq!((options.user.as_str(), options.password.as_deref()), ("a@n", Some("p/:w%zz+")));
        assert_eq!(options.address(), "db.example:5433");
        assert_eq!(options.database.as_deref(), Some("the firm"));
        assert_eq!(options.settings, None);
        assert_eq!(read("postgres://ann:p@ss@db/firm", &[]).password.as_deref(), Some("p@ss"));
        assert_eq!(read("postgres://ann:@db:/firm", &[]).password, None);
        assert_eq!(read("postgres://ann@[::1]:6000", &[]).address(), "[::1]:6000");
        assert_eq!(read("postgres://ann@[2001:db8::7]/firm", &[]).host, "2001:db8::7");
    }

    #[test]
    fn folder_of_a_socket_is_a_host() {
        let folder = "/var/run/postgresql";
        for url in [
            "postgres://ann@%2Fvar%2Frun%2Fpostgresql/firm",
            "postgres:///firm?host=/var/run/postgresql",
            "postgres://db.example/firm?host=%2Fvar%2Frun%2Fpostgresql",
        ] {
            assert_eq!(read(url, &[]).socket_folder(), Some(Path::new(folder)), "{url}");
            assert_eq!(url.parse::<DatabaseUrl>().unwrap().cleartext_host(), None, "{url}");
        }
        assert!(read("postgres:///firm", &[("PGHOST", folder)]).socket_folder().is_some());
        let shown = "postgres://%2Fvar%2Frun%2Fpostgresql:5432/firm";
        assert_eq!(shown.parse::<DatabaseUrl>().unwrap().to_string(), shown);
    }

    #[test]
    fn parameters_override_the_rest_of_the_url() {
        let options = read(
            "postgres://ann:old@db/firm?user=bob&password=n%26ew+1&dbname=other&port=7&hostaddr=10.0.0.7\
             &application_name=x&statement-cache-capacity=0&unknown=1&&flag",
            &[],
        );
        assert_eq!((options.user.as_str(), options.password.as_deref()), ("bob", Some("n&ew 1")));
        assert_eq!((options.address().as_str(), options.database.as_deref()), ("10.0.0.7:7", Some("other")));
    }

    #[test]
    fn settings_of_the_session_are_joined_and_escaped() {
        let options = read(
            "postgres:///?options=-c%20synchronous_commit%3Doff&options[search_path]=a\\b%20c",
            &[("PGOPTIONS", "-c geqo=off")],
        );
        let expected = "-c geqo=off -c synchronous_commit=off -c search_path=a\\\\b\\ c";
        assert_eq!(options.settings.as_deref(), Some(expected));
    }

    #[test]
    fn tls_parameters_have_libpq_and_sqlx_names() {
        for (name, mode) in [
            ("disable", TlsMode::Disable),
            ("allow", TlsMode::Allow),
            ("prefer", TlsMode::Prefer),
            ("Require", TlsMode::Require),
            ("verify-ca", TlsMode::VerifyCa),
            ("verify-full", TlsMode::VerifyFull),
        ] {
            assert_eq!(read(&format!("postgres://db/firm?sslmode={name}"), &[]).tls.mode, mode);
            assert_eq!(read(&format!("postgres://db/firm?ssl-mode={name}"), &[]).tls.mode, mode);
            let url = format!("postgres://db.example/firm?sslmode={name}").parse::<DatabaseUrl>().unwrap();
            assert_eq!(url.cleartext_host().is_none(), mode >= TlsMode::Require, "{name}");
        }
        let file = |name: &str| Some(Pem::File(name.into()));
        for [roots, certificate, key] in
            [["sslrootcert", "sslcert", "sslkey"], ["ssl-root-cert", "ssl-cert", "ssl-key"]]
        {
            let tls = read(&format!("postgres://db?{roots}=/r.pem&{certificate}=c&{key}=k"), &[]).tls;
            assert_eq!((tls.roots, tls.certificate, tls.key), (file("/r.pem"), file("c"), file("k")));
        }
        assert_eq!(read("postgres://db?ssl-ca=r", &[]).tls.roots, file("r"));
        assert_eq!(read("postgres://db", &[]).tls.mode, TlsMode::Prefer);
    }

    #[test]
    fn environment_has_what_the_url_leaves_open() {
        let text = "-----BEGIN CERTIFICATE-----";
        let environment = [
            ("PGHOST", "db.example"),
            ("PGPORT", "7"),
            ("PGUSER", "ann"),
            ("PGPASSWORD", "secret"),
            ("PGDATABASE", "firm"),
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", text),
            ("PGAPPNAME", "x"),
        ];
        let options = read("postgres://", &environment);
        assert_eq!((options.address().as_str(), options.user.as_str()), ("db.example:7", "ann"));
        assert_eq!(
            (options.password.as_deref(), options.database.as_deref()),
            (Some("secret"), Some("firm"))
        );
        assert_eq!(options.tls.mode, TlsMode::VerifyFull);
        assert_eq!(options.tls.roots, Some(Pem::Text(text.to_owned())));
        let options = read("postgres://bob:b@other:8/books?sslmode=disable&sslrootcert=r", &environment);
        assert_eq!((options.address().as_str(), options.user.as_str()), ("other:8", "bob"));
        assert_eq!((options.password.as_deref(), options.database.as_deref()), (Some("b"), Some("books")));
        assert_eq!(options.tls.mode, TlsMode::Disable);
        assert_eq!(options.tls.roots, Some(Pem::File("r".into())));
        assert_eq!(read("postgres://", &[("PGHOST", "a"), ("PGHOSTADDR", "10.0.0.7")]).host, "10.0.0.7");
        assert_eq!(read("postgres://db", &[("PGPORT", "x"), ("PGSSLMODE", "x")]).address(), "db:5432");
    }

    #[test]
    fn password_file_is_matched_by_its_first_fields() {
        let options = read("postgres://ann@db.example/firm", &[]);
        for (line, password) in [
            ("db.example:5432:firm:ann:secret", Some("secret")),
            ("*:*:*:*:with space ", Some("with space ")),
            (r"*:5432:firm:ann:a\:b\\c:d\e", Some(r"a:b\c:de")),
            ("db.example:5433:firm:ann:secret", None),
            ("other:5432:firm:ann:secret", None),
            ("localhost:5432:firm:ann:secret", None),
            ("*:*:*:bob:secret", None),
            ("*:*:*:ann", None),
            ("#*:*:*:*:secret", None),
            ("", None),
        ] {
            assert_eq!(options.password_in(line).as_deref(), password, "{line}");
        }
        let options = read("postgres://ann@%2Frun%2Fa/x", &[("PGDATABASE", "y")]);
        assert_eq!(options.password_in(r"localhost:5432:x:ann:s").as_deref(), Some("s"));
        assert_eq!(options.password_in(r"/run/a:5432:x:ann:s").as_deref(), Some("s"));
    }

    #[test]
    fn password_file_that_others_can_read_is_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pgpass");
        std::fs::write(&file, "x").unwrap();
        for (mode, text) in [(0o600, Some("x")), (0o640, None), (0o604, None)] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(read_private(&file).as_deref(), text, "{mode:o}");
        }
        assert_eq!(read_private(&folder.path().join("none")), None);
    }

    #[test]
    fn errors_name_the_wrong_part() {
        for (url, why) in [
            ("postgres://db:x/firm", "port"),
            ("postgres://db:65536/firm", "port"),
            ("postgres://db/firm?port=-1", "port"),
            ("postgres://d b/firm", "host name"),
            ("postgres://[db]/firm", "IPv6"),
            ("postgres://db/firm?hostaddr=db", "hostaddr"),
            ("postgres://db/firm?sslmode=on", "`verify-full`"),
            ("postgres://%ff@db/firm", "UTF-8"),
        ] {
            let error = url.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
