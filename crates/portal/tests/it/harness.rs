//! A portal that uses the hostile provider, a browser, and the portal's log.

use crate::hostile_provider::{ACCESS_TOKEN, CLIENT_ID, CLIENT_SECRET, HostileProvider, ProviderBehavior};
use axum::http::StatusCode;
use chancery_domain::{
    Currency, InvoiceTerms, ManualClock, OsRandomness, RateLimits, Seller, SessionTimeouts, UnixMillis,
};
use chancery_http_client::{OwnCertificates, client_builder};
use chancery_mail::{MailRoute, Mailer};
use chancery_policy::Policy;
use chancery_portal::{
    DEFAULT_PERSON_REQUESTS_PER_MIN, IdentitySettings, Portal, PortalSettings, PublicApi, SecondFactor,
    SignInRequirements, router,
};
use chancery_store::Store;
use chancery_test_support::{CookieJar, emails_in, raw_sql};
use reqwest::Url;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

pub struct Harness {
    pub provider: HostileProvider,
    pub portal: Arc<Portal>,
    pub portal_url: String,
    pub clock: Arc<ManualClock>,
    log: Log,
    folder: tempfile::TempDir,
    _logging: tracing::subscriber::DefaultGuard,
}

/// A browser that stores cookies and does not follow redirects.
pub struct Browser {
    client: reqwest::Client,
    pub cookies: CookieJar,
}

#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub location: Option<String>,
    pub set_cookies: Vec<String>,
    pub retry_after: Option<String>,
    pub cache_control: Option<String>,
    pub page: String,
}

impl Harness {
    pub async fn begin() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut IdentitySettings)) -> Self {
        Self::with_settings(|settings| change(&mut settings.identity)).await
    }

    pub async fn with_settings(change: impl FnOnce(&mut PortalSettings)) -> Self {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let logging = tracing::subscriber::set_default(subscriber);
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let provider = HostileProvider::start(clock.clone()).await;
        let identity = IdentitySettings {
            issuer: provider.issuer.clone(),
            client_id: CLIENT_ID.to_owned(),
            client_secret: Some(CLIENT_SECRET.to_owned()),
            requirements: SignInRequirements::default(),
            roles: None,
            recheck_after: None,
        };

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let portal_url = format!("http://{}", listener.local_addr().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open_file(&folder.path().join("chancery.db")).await.unwrap());
        let from = "portal@example.com".parse().unwrap();
        let outbox = MailRoute::Outbox(folder.path().join("outbox"));
        let mailer = Arc::new(Mailer::new(&outbox, &from, "Hale & Partners", clock.clone()).unwrap());
        let mut settings = PortalSettings {
            has_built_in_provider: false,
            trusted_proxies: chancery_web::TrustedProxies::default(),
            drafting: None,
            invoice_terms: InvoiceTerms {
                currency: Currency::USD,
                seller: Seller {
                    name: "Hale & Partners".to_owned(),
                    letterhead: String::new(),
                    payment: String::new(),
                },
                tax: None,
                payment_days: 30,
            },
            pdf_fonts: chancery_invoicing::PdfFonts::default(),
            api: PublicApi {
                url: "http://localhost:8080".to_owned(),
                model: None,
                default_limits: RateLimits { requests_per_min: 60, tokens_per_min: 60_000 },
            },
            own_certificates: OwnCertificates::default(),
            public_url: portal_url.clone(),
            firm_name: "Hale & Partners".to_owned(),
            time_zone: "UTC".parse().unwrap(),
            company_domain: "example.com".parse().unwrap(),
            second_factor: SecondFactor::None,
            partners: Vec::new(),
            session_times: SessionTimeouts {
                idle: Duration::from_secs(1_800),
                max: Duration::from_secs(43_200),
            },
            person_requests_per_min: DEFAULT_PERSON_REQUESTS_PER_MIN,
            bind_session: false,
            hsts_include_subdomains: false,
            identity,
        };
        change(&mut settings);
        let policy = Arc::new(Policy::load().unwrap());
        let portal = Portal::new(
            settings,
            Arc::new(store.portal()),
            mailer,
            policy,
            clock.clone(),
            Arc::new(OsRandomness),
        )
        .unwrap();
        let portal = Arc::new(portal);
        let routes = router(Arc::clone(&portal)).into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { provider, portal, portal_url, clock, log, folder, _logging: logging }
    }

    /// Changes the database without the store.
    pub async fn change_database(&self, sql: &'static str) {
        let url = format!("sqlite:{}", self.folder.path().join("chancery.db").display());
        raw_sql(&url, sql).await.unwrap();
    }

    /// Signs in with a new browser, until the portal has answered the callback.
    pub async fn sign_in(&self) -> Reply {
        let mut browser = Browser::new();
        let callback = self.callback_url(&mut browser).await;
        browser.get(&callback).await
    }

    /// Signs in at the provider and returns the callback URL, which is still to be opened.
    pub async fn callback_url(&self, browser: &mut Browser) -> String {
        let begun = browser.get(&self.url("/auth/sign-in?return_to=/clients/7")).await;
        assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.page);
        let at_provider = Browser::new().get(&begun.location.unwrap()).await;
        at_provider.location.unwrap()
    }

    /// A browser that has signed in.
    pub async fn signed_in_browser(&self) -> Browser {
        let mut browser = Browser::new();
        let callback = self.callback_url(&mut browser).await;
        self.assert_signed_in(&browser.get(&callback).await);
        browser
    }

    /// Opens a portal page that redirects to the provider, and goes there and back. Returns the reply to the callback.
    pub async fn through_provider(&self, browser: &mut Browser, path: &str) -> Reply {
        let mut reply = browser.get(&self.url(path)).await;
        if let Some(location) = reply.location.clone().filter(|location| location.starts_with('/')) {
            assert!(location.starts_with("/auth/sign-in?"), "{location}");
            reply = browser.get(&self.url(&location)).await;
        }
        let at_provider = Browser::new().get(&reply.location.unwrap()).await;
        browser.get(&at_provider.location.unwrap()).await
    }

    /// The code in the only email.
    pub fn latest_code(&self) -> String {
        let emails = emails_in(&self.folder.path().join("outbox"));
        let is_code = |line: &&str| line.len() == 6 && line.bytes().all(|byte| byte.is_ascii_digit());
        emails.last().unwrap().lines().map(str::trim).find(is_code).unwrap().to_owned()
    }

    /// Whether the browser's session is active.
    pub async fn is_signed_in(&self, browser: &mut Browser) -> bool {
        browser.get(&self.url("/sessions")).await.status == StatusCode::OK
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.portal_url)
    }

    pub fn behavior(&self, change: impl FnOnce(&mut ProviderBehavior)) {
        change(&mut self.provider.behavior());
    }

    /// The portal's log so far, which must never contain a secret.
    pub fn log(&self) -> String {
        let log = String::from_utf8(self.log.0.lock().unwrap().clone()).unwrap();
        for secret in [ACCESS_TOKEN, CLIENT_SECRET, "code-1", "code_verifier=", "eyJ"] {
            assert!(!log.contains(secret), "{secret} is in the log: {log}");
        }
        log
    }

    /// Asserts an error page with this status and text and a link to sign in again, no session, and the reason in the log.
    #[track_caller]
    pub fn assert_rejected(&self, reply: &Reply, status: u16, text: &str, logged: &str) {
        assert_eq!(reply.status.as_u16(), status, "{reply:?}\n{}", self.log());
        assert!(!reply.starts_session(), "{reply:?}");
        assert!(reply.page.contains(text), "{reply:?}");
        assert!(reply.page.contains("href=\"/auth/sign-in?return_to=%2Fclients"), "{reply:?}");
        assert!(self.log().contains(logged), "{logged:?} is not in {}", self.log());
        let lines = self.log().lines().filter(|line| line.contains("internal=")).count();
        assert!(lines >= 1, "{}", self.log());
    }

    #[track_caller]
    pub fn assert_signed_in(&self, reply: &Reply) {
        assert_eq!(reply.status, StatusCode::SEE_OTHER, "{reply:?}\n{}", self.log());
        assert_eq!(reply.location.as_deref(), Some("/clients/7"));
        assert!(reply.starts_session(), "{reply:?}");
    }
}

impl Browser {
    pub fn new() -> Self {
        let client = client_builder().tls_certs_only([]).no_proxy().timeout(Duration::from_secs(30));
        Self { client: client.build().unwrap(), cookies: CookieJar::default() }
    }

    pub async fn get(&mut self, url: &str) -> Reply {
        let url = Url::parse(url).unwrap();
        let path = url.path().to_owned();
        self.send(&path, self.client.get(url).header("accept", "text/html")).await
    }

    /// Loads the URL as an image of another site's page.
    pub async fn get_as_image(&mut self, url: &str) -> Reply {
        let url = Url::parse(url).unwrap();
        let path = url.path().to_owned();
        self.send(&path, self.client.get(url).header("sec-fetch-dest", "image")).await
    }

    /// Submits a form of the page.
    pub async fn post(&mut self, url: &str, form: &str) -> Reply {
        self.post_for(url, form, "text/html").await
    }

    pub async fn post_for(&mut self, url: &str, form: &str, accept: &str) -> Reply {
        let url = Url::parse(url).unwrap();
        let path = url.path().to_owned();
        let request = self.client.post(url).header("accept", accept);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.send(&path, request.body(form.to_owned())).await
    }

    async fn send(&mut self, path: &str, mut request: reqwest::RequestBuilder) -> Reply {
        let cookies = self.cookies.header(path);
        if let Some(cookies) = cookies {
            request = request.header("cookie", cookies);
        }
        let reply = request.send().await.unwrap();
        let text = |name: &str| reply.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let set_cookies = reply.headers().get_all("set-cookie").iter();
        let set_cookies: Vec<_> = set_cookies.map(|value| value.to_str().unwrap().to_owned()).collect();
        for cookie in &set_cookies {
            self.cookies.keep(cookie);
        }
        Reply {
            status: reply.status(),
            location: text("location"),
            retry_after: text("retry-after"),
            cache_control: text("cache-control"),
            set_cookies,
            page: reply.text().await.unwrap(),
        }
    }
}

impl Reply {
    pub fn starts_session(&self) -> bool {
        self.set_cookies.iter().any(|cookie| cookie.starts_with("session="))
    }
}

/// Asserts that a sign-in fails after this change to the provider, because its reply is not trusted for this reason.
#[track_caller]
pub fn is_not_trusted(change: impl FnOnce(&mut ProviderBehavior), logged: &str) -> impl Future<Output = ()> {
    let logged = logged.to_owned();
    async move {
        let harness = Harness::begin().await;
        harness.behavior(change);
        let reply = harness.sign_in().await;
        harness.assert_rejected(&reply, 502, "Sign-in response rejected", &logged);
    }
}

/// Asserts that a sign-in still works after this change to the provider.
pub async fn signs_in(change: impl FnOnce(&mut ProviderBehavior)) -> Harness {
    let harness = Harness::begin().await;
    harness.behavior(change);
    harness.assert_signed_in(&harness.sign_in().await);
    harness
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
