//! A provider with its own database and two clients. Users are signed in directly, without its pages.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, header};
use chancery_auth::{Client, Provider, ProviderSettings, SecondFactorPolicy, router};
use chancery_domain::{Clock, ManualClock, OsRandomness, SecretToken, SystemClock};
use chancery_mail::{MailRoute, Mailer};
use chancery_store::{NewProviderAccount, NewProviderSession, PasswordHash, ProviderAccount, Store};
use http_body_util::BodyExt;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use tower_service::Service;

pub const ISSUER: &str = "http://127.0.0.1:8082";
pub const CALLBACK: &str = "http://localhost:8081/auth/callback";
pub const SIGNED_OUT: &str = "http://localhost:8081/signed-out";
pub const SECRET: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";

/// The example of RFC 7636, appendix B.
pub const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
pub const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

pub struct TestProvider {
    pub provider: Arc<Provider>,
    pub clock: Arc<ManualClock>,
    pub router: Router,
    _folder: tempfile::TempDir,
}

/// A browser, signed in or not.
#[derive(Clone, Default)]
pub struct Browser {
    pub cookie: Option<String>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The target of a redirect and its parameters.
    pub fn redirect_to(&self) -> (String, HashMap<String, String>) {
        assert_eq!(self.status, 303, "{self:?}");
        let location = self.header("location");
        let (path, query) = location.split_once('?').unwrap_or((location, ""));
        (path.to_owned(), form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The parameters with which the browser returns to the application.
    pub fn returned(&self) -> HashMap<String, String> {
        let (path, parameters) = self.redirect_to();
        assert_eq!(path, CALLBACK, "{self:?}");
        assert_eq!(parameters["iss"], ISSUER);
        parameters
    }

    /// The value of a hidden field of a form.
    pub fn hidden(&self, name: &str) -> String {
        let start = format!("name=\"{name}\" value=\"");
        let (_, rest) = self.body.split_once(&start).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        rest.split('"').next().unwrap().to_owned()
    }
}

pub fn encoded(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// A valid request, with some parameters changed or (when empty) left out.
pub fn authorize_path(changes: &[(&str, &str)]) -> String {
    let mut pairs = vec![
        ("response_type", "code"),
        ("client_id", "portal"),
        ("redirect_uri", CALLBACK),
        ("scope", "openid email"),
        ("state", "the state"),
        ("nonce", "the nonce"),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
    ];
    pairs.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    pairs.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
    format!("/authorize?{}", encoded(&pairs))
}

impl TestProvider {
    pub async fn start() -> Self {
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        Self::start_with(ISSUER, CALLBACK, clock).await
    }

    pub async fn start_with(issuer: &str, callback: &str, clock: Arc<ManualClock>) -> Self {
        Self::start_with_clients(issuer, callback, clock, SecondFactorPolicy::Optional, None).await
    }

    pub async fn start_with_policy(
        issuer: &str,
        callback: &str,
        clock: Arc<ManualClock>,
        second_factor: SecondFactorPolicy,
    ) -> Self {
        Self::start_with_clients(issuer, callback, clock, second_factor, None).await
    }

    /// The client `portal` gets logout tokens at this address.
    pub async fn start_with_backchannel(uri: &str) -> Self {
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        Self::start_with_clients(ISSUER, CALLBACK, clock, SecondFactorPolicy::Optional, Some(uri)).await
    }

    async fn start_with_clients(
        issuer: &str,
        callback: &str,
        clock: Arc<ManualClock>,
        second_factor: SecondFactorPolicy,
        backchannel_logout_uri: Option<&str>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let client = |id: &str, name: &str, secret: Option<&str>| Client {
            id: id.to_owned(),
            name: name.to_owned(),
            secret: secret.map(str::to_owned),
            redirect_uris: vec![callback.to_owned()],
            post_logout_redirect_uris: vec![SIGNED_OUT.to_owned()],
            backchannel_logout_uri: backchannel_logout_uri.filter(|_| id == "portal").map(str::to_owned),
        };
        let settings = ProviderSettings {
            trusted_proxies: chancery_web::TrustedProxies::default(),
            second_factor,
            hsts_include_subdomains: false,
            issuer: issuer.to_owned(),
            firm_name: "Hale & Ward".to_owned(),
            company_domain: "example.com".parse().unwrap(),
            clients: vec![
                client("portal", "Client <portal>", Some(SECRET)),
                client("public", "Public", None),
            ],
        };
        let from = "id@example.com".parse().unwrap();
        let route = MailRoute::Outbox(folder.path().join("outbox"));
        let mailer = Mailer::new(&route, &from, "Hale & Ward", Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        let provider = Arc::new(Provider::new(
            settings,
            Arc::new(store.provider()),
            Arc::new(mailer),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::new(OsRandomness),
        ));
        let router = router(Arc::clone(&provider));
        Self { provider, clock, router, _folder: folder }
    }

    pub async fn account(&self, email: &str) -> ProviderAccount {
        let new = NewProviderAccount {
            subject: SecretToken::generate(&OsRandomness).reveal().to_owned(),
            email: email.parse().unwrap(),
            password_hash: PasswordHash("not a password".to_owned()),
            at: self.clock.now(),
        };
        self.provider.store.provider_accounts.create_provider_account(new).await.unwrap()
    }

    pub async fn sign_in(&self, account: &ProviderAccount) -> Browser {
        let token = SecretToken::generate(&OsRandomness);
        let new = NewProviderSession {
            token: token.hash(),
            subject: account.subject.clone(),
            password_version: account.password_version,
            sid: SecretToken::generate(&OsRandomness).reveal().to_owned(),
            amr: "pwd".to_owned(),
            at: self.clock.now(),
        };
        self.provider.store.provider_sessions.start_provider_session(new).await.unwrap();
        Browser { cookie: Some(format!("__Host-auth_session={}", token.reveal())) }
    }

    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().call(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Reply { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub async fn get(&self, browser: &Browser, path: &str) -> Reply {
        let mut request = Request::builder().uri(path).header("sec-fetch-site", "cross-site");
        if let Some(cookie) = &browser.cookie {
            request = request.header(header::COOKIE, cookie);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }

    /// Posts a form of our own pages.
    pub async fn post(&self, browser: &Browser, path: &str, form: &[(&str, &str)]) -> Reply {
        self.post_from("same-origin", browser, path, &encoded(form)).await
    }

    pub async fn post_from(&self, site: &str, browser: &Browser, path: &str, body: &str) -> Reply {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("sec-fetch-site", site)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(cookie) = &browser.cookie {
            request = request.header(header::COOKIE, cookie);
        }
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// A user who is signed in and has allowed the client everything it asks for.
    pub async fn consenting(&self, email: &str) -> (ProviderAccount, Browser) {
        let account = self.account(email).await;
        let browser = self.sign_in(&account).await;
        self.allow(&browser, &authorize_path(&[])).await;
        (account, browser)
    }

    /// Follows the request to the consent page and allows it.
    pub async fn allow(&self, browser: &Browser, path: &str) -> Reply {
        let page = self.get(browser, path).await;
        assert_eq!(page.status, 200, "{page:?}");
        let question = page.hidden("question");
        self.post(browser, "/consent", &[("question", &question), ("decision", "allow")]).await
    }

    /// Gets a code for a user who has consented.
    pub async fn code(&self, browser: &Browser, changes: &[(&str, &str)]) -> String {
        self.get(browser, &authorize_path(changes)).await.returned()["code"].clone()
    }

    /// A client's request to `/token`.
    pub async fn token(&self, authorization: Option<&str>, form: &[(&str, &str)]) -> Reply {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri("/token")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        self.send(request.body(Body::from(encoded(form))).unwrap()).await
    }

    /// Exchanges a code as the legitimate client would.
    pub async fn exchange(&self, code: &str) -> Reply {
        self.token(None, &exchange_form(code, &[])).await
    }

    pub async fn userinfo(&self, method: Method, authorization: Option<&str>) -> Reply {
        let mut request = Request::builder().method(method).uri("/userinfo");
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }
}

/// With some fields changed or (when empty) left out.
pub fn exchange_form<'a>(code: &'a str, changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut form = vec![
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
        ("client_id", "portal"),
        ("client_secret", SECRET),
    ];
    form.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    form.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
    form
}

/// The claims of an ID token, without checking its signature.
pub fn claims(id_token: &str) -> Value {
    use base64::Engine as _;
    let part = id_token.split('.').nth(1).unwrap();
    serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}
