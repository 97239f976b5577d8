//! A provider with its own database and outbox, and browsers with a cookie jar each.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, header};
use chancery_alerts::{AllowedNetworks, OutboxWorker, WebhookClient};
use chancery_auth::{Provider, ProviderSettings, SecondFactorPolicy, add_account, router};
use chancery_domain::{Clock, EmailAddress, ManualClock, OsRandomness, SystemClock};
use chancery_mail::{MailRoute, Mailer};
use chancery_store::{NewProviderAccount, PasswordHash, ProviderAccount, Store};
use chancery_test_support::{CookieJar, emails_in};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub const PASSWORD: &str = "a quiet desk and one blue";

pub const HOST_NAME_ISSUER: &str = "http://localhost:8082";

pub struct TestProvider {
    /// Reaches tables that the provider itself cannot.
    pub store: Store,
    pub provider: Arc<Provider>,
    pub clock: Arc<ManualClock>,
    router: Router,
    outbox: PathBuf,
    _folder: tempfile::TempDir,
}

#[derive(Clone)]
pub struct Browser {
    router: Router,
    peer: SocketAddr,
    pub cookies: CookieJar,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

/// An email in the outbox.
#[derive(Clone, Debug)]
pub struct StoredEmail {
    pub to: String,
    pub subject: String,
    pub text: String,
}

impl TestProvider {
    pub async fn start() -> Self {
        Self::with_mail(MailRoute::Outbox, |_| {}).await
    }

    /// At a host name, where passkeys work.
    pub async fn at_host_name() -> Self {
        let change = |settings: &mut ProviderSettings| settings.issuer = HOST_NAME_ISSUER.to_owned();
        Self::with_mail(MailRoute::Outbox, change).await
    }

    pub async fn with_required_factor() -> Self {
        let change = |settings: &mut ProviderSettings| {
            settings.issuer = HOST_NAME_ISSUER.to_owned();
            settings.second_factor = SecondFactorPolicy::Required;
        };
        Self::with_mail(MailRoute::Outbox, change).await
    }

    pub async fn with_mail_server(address: SocketAddr) -> Self {
        Self::with_mail(|_| MailRoute::Smtp(format!("smtp://{address}")), |_| {}).await
    }

    async fn with_mail(
        route: impl FnOnce(PathBuf) -> MailRoute,
        change: impl FnOnce(&mut ProviderSettings),
    ) -> Self {
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let mut settings = ProviderSettings {
            trusted_proxies: chancery_web::TrustedProxies::default(),
            second_factor: SecondFactorPolicy::default(),
            hsts_include_subdomains: false,
            issuer: "http://127.0.0.1:8082".to_owned(),
            firm_name: "Hale & Ward".to_owned(),
            company_domain: "example.com".parse().unwrap(),
            clients: Vec::new(),
        };
        change(&mut settings);
        let outbox = folder.path().join("outbox");
        let from = "id@example.com".parse().unwrap();
        let route = route(outbox.clone());
        let mailer = Mailer::new(&route, &from, "Hale & Ward", Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        let mailer = Arc::new(mailer);
        // As in every server, a worker sends what is in the outbox.
        let worker = OutboxWorker::new(
            store.alerting(),
            Arc::clone(&mailer),
            WebhookClient::new(AllowedNetworks::default()),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::new(OsRandomness),
        );
        tokio::spawn(Arc::new(worker).run(CancellationToken::new()));
        let provider = Arc::new(Provider::new(
            settings,
            Arc::new(store.provider()),
            mailer,
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::new(OsRandomness),
        ));
        let router = router(Arc::clone(&provider));
        Self { provider, store, clock, router, outbox, _folder: folder }
    }

    pub async fn account(&self, email: &str) -> ProviderAccount {
        let (store, randomness, clock) =
            (&*self.provider.store, &*self.provider.randomness, &*self.provider.clock);
        add_account(store, randomness, clock, "Hale & Ward", &email.parse().unwrap(), PASSWORD).await.unwrap()
    }

    /// Nobody can sign in to this account, and it costs no hash.
    pub async fn account_without_password(&self, email: &str) {
        let new = NewProviderAccount {
            subject: email.to_owned(),
            email: email.parse().unwrap(),
            password_hash: PasswordHash("none".to_owned()),
            at: self.clock.now(),
        };
        self.provider.store.provider_accounts.create_provider_account(new).await.unwrap();
    }

    pub async fn has_account(&self, email: &str) -> bool {
        let email: EmailAddress = email.parse().unwrap();
        self.provider.store.provider_accounts.provider_account_by_email(&email).await.unwrap().is_some()
    }

    pub fn browser(&self) -> Browser {
        self.browser_at("192.0.2.1")
    }

    pub fn browser_at(&self, address: &str) -> Browser {
        let peer = SocketAddr::new(address.parse().unwrap(), 50_000);
        Browser { router: self.router.clone(), peer, cookies: CookieJar::default() }
    }

    /// All emails so far, oldest first.
    pub fn emails(&self) -> Vec<StoredEmail> {
        emails_in(&self.outbox).iter().map(|email| StoredEmail::read(email)).collect()
    }

    /// Waits until there are this many emails, because they are sent in the background.
    pub async fn emails_when(&self, count: usize) -> Vec<StoredEmail> {
        for _ in 0..1_000 {
            let emails = self.emails();
            if emails.len() >= count {
                assert_eq!(emails.len(), count, "{emails:?}");
                return emails;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} letters did not come: {:?}", self.emails());
    }

    /// Emails with a code to add the first second factor, oldest first.
    pub fn first_factor_codes(&self) -> Vec<String> {
        let emails = self.emails().into_iter();
        let emails = emails.filter(|email| email.subject == "Your code to add a second factor");
        emails.map(|email| email.code().unwrap()).collect()
    }

    /// The code in the newest of `count` emails.
    pub async fn code_in_email(&self, count: usize) -> String {
        self.emails_when(count).await.last().unwrap().code().unwrap()
    }
}

impl StoredEmail {
    fn read(eml: &str) -> Self {
        let (head, text) = eml.split_once("\r\n\r\n").unwrap();
        let header = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        Self { to: header("To:"), subject: header("Subject:"), text: text.replace("\r\n", "\n") }
    }

    pub fn code(&self) -> Option<String> {
        let mut runs = self.text.split(|c: char| !c.is_ascii_digit()).filter(|run| run.len() == 6);
        let code = runs.next().map(str::to_owned);
        assert!(runs.next().is_none(), "two codes in {self:?}");
        code
    }
}

impl Browser {
    pub async fn get(&mut self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], &[]).await
    }

    pub async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Reply {
        self.send(Method::POST, path, fields, &[("sec-fetch-site", "same-origin")]).await
    }

    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Reply {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "127.0.0.1:8082");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .extension(ConnectInfo(self.peer))
            .body(Body::from(body))
            .unwrap();
        let (parts, body) = self.cookies.send(&self.router, request).await.into_parts();
        for cookie in parts.headers.get_all(header::SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            for part in ["; HttpOnly", "; Secure", "; SameSite=Lax", "; Path=/"] {
                assert!(cookie.contains(part) && !cookie.contains("Domain"), "{cookie}");
            }
        }
        let body = String::from_utf8(body).unwrap();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn sign_in(&mut self, email: &str, password: &str) -> Reply {
        self.post("/sign-in", &[("email", email), ("password", password)]).await
    }

    pub async fn is_signed_in(&mut self) -> bool {
        self.get("/").await.body.contains("You are signed in as")
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The target of a redirect after a form.
    pub fn redirect_to(&self) -> &str {
        assert_eq!(self.status, 303, "{self:?}");
        self.header("location")
    }

    pub fn assert_form_again(&self, says: &str) {
        assert_eq!(self.status, 422, "{self:?}");
        assert!(self.body.contains("<title>Error: "), "{self:?}");
        assert!(self.body.contains("aria-invalid=\"true\""), "{self:?}");
        assert!(self.body.contains(says), "{says:?} is not in {self:?}");
    }

    pub fn assert_too_many(&self) -> Duration {
        assert_eq!(self.status, 429, "{self:?}");
        Duration::from_secs(self.header("retry-after").parse().unwrap())
    }
}
