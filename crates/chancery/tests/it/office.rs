//! The demo firm with people signed in over plain HTTP: each step of a browser, without a browser.

use crate::browser::Browser;
use crate::server::{Firm, Server};
use chancery_test_support::CookieJar;
use reqwest::header::{self, HeaderMap};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A browser's `Accept` header.
const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";
const JSON: &str = "application/json";
/// From the portal's button back to the portal: two pages and their redirects.
const MAX_STEPS_TO_SIGN_IN: usize = 16;

/// A server with the demo firm.
pub struct Office {
    pub firm: Firm,
    pub server: Server,
}

/// A person with a session who sends requests without a browser.
pub struct SignedInUser {
    pub email: String,
    /// The value of the `session` cookie.
    pub session: String,
    portal: String,
    http: reqwest::Client,
}

#[derive(Debug)]
pub struct PortalResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Office {
    pub fn open() -> Self {
        let firm = Firm::new().with("CHANCERY_PORTAL__FIRM_NAME", "Marlow & Finch");
        let server = firm.start_with(&["--demo", "--minimal"]);
        Self { firm, server }
    }

    pub fn portal(&self, path: &str) -> String {
        format!("{}{path}", self.server.portal)
    }

    /// The complete flow: the portal's button, the provider's form, its consent page, and back.
    pub async fn sign_in(&self, name: &str) -> SignedInUser {
        sign_in(&self.firm, &self.server.portal, name).await
    }
}

/// Returns the person's password in the demo firm.
fn password(firm: &Firm, email: &str) -> String {
    let demo = std::fs::read(firm.data().join("demo.json")).unwrap();
    let demo: Value = serde_json::from_slice(&demo).unwrap();
    let user = demo["users"].as_array().unwrap().iter().find(|user| user["email"] == email).unwrap();
    user["password"].as_str().unwrap().to_owned()
}

/// Signs a person of the demo firm in at this portal URL.
pub async fn sign_in(firm: &Firm, portal: &str, name: &str) -> SignedInUser {
    sign_in_with(without_redirects(), firm, portal, name).await
}

/// The same with a client of the caller's, which must not follow redirects.
pub async fn sign_in_with(http: reqwest::Client, firm: &Firm, portal: &str, name: &str) -> SignedInUser {
    let email = format!("{name}@example.com");
    let password = password(firm, &email);
    let mut cookies = Cookies::default();
    let mut url: Url = format!("{portal}/auth/sign-in").parse().unwrap();
    let mut form = None;
    for _ in 0..MAX_STEPS_TO_SIGN_IN {
        let response = cookies.send(&http, &url, form.take()).await;
        if let Some(session) = cookies.value(portal, "session") {
            return SignedInUser { email, session, portal: portal.to_owned(), http };
        }
        if let Some(location) = response.headers.get(header::LOCATION) {
            url = url.join(location.to_str().unwrap()).unwrap();
            continue;
        }
        let (action, mut fields) = first_form(&response.body);
        url = url.join(&action).unwrap();
        if response.body.contains("name=\"password\"") {
            fields.push(("email".to_owned(), email.clone()));
            fields.push(("password".to_owned(), password.clone()));
        } else {
            fields.push(("decision".to_owned(), "allow".to_owned()));
        }
        form = Some(form_body(&fields));
    }
    panic!("{email} did not come to a session, but to {url}");
}

impl SignedInUser {
    pub fn name(&self) -> &str {
        self.email.split('@').next().unwrap()
    }

    /// The same session on another node.
    pub fn at(&self, portal: &str) -> Self {
        let (email, session, http) = (self.email.clone(), self.session.clone(), self.http.clone());
        Self { email, session, portal: portal.to_owned(), http }
    }

    pub async fn page(&self, path: &str) -> PortalResponse {
        self.send(Method::GET, path, HTML, None).await
    }

    pub async fn json(&self, path: &str) -> PortalResponse {
        self.send(Method::GET, path, JSON, None).await
    }

    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> PortalResponse {
        self.send(Method::POST, path, HTML, Some(form_body(fields))).await
    }

    async fn send(&self, method: Method, path: &str, accept: &str, form: Option<String>) -> PortalResponse {
        let request = self.http.request(method, format!("{}{path}", self.portal));
        let request = request.header(header::COOKIE, format!("session={}", self.session));
        send(request.header(header::ACCEPT, accept), form).await
    }

    /// Returns every client in the person's list, across all pages.
    pub async fn clients(&self) -> Vec<Value> {
        let (mut clients, mut page) = (Vec::new(), 1);
        loop {
            let response = self.json(&format!("/clients?page={page}")).await.value();
            clients.extend(response["clients"].as_array().unwrap().iter().cloned());
            if response["pages"] == page {
                assert_eq!(response["total"], clients.len());
                return clients;
            }
            page += 1;
        }
    }

    /// Gives the browser this person's session.
    pub async fn use_in_browser(&self, browser: &Browser) {
        browser.clear_cookies().await;
        browser.set_cookie(&self.portal, "session", &self.session).await;
    }
}

impl PortalResponse {
    /// Returns the JSON of a successful reply.
    pub fn value(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn location(&self) -> &str {
        self.headers.get(header::LOCATION).map_or("", |location| location.to_str().unwrap())
    }

    /// Returns everything that an attacker could compare, without what differs in every request.
    pub fn without_its_request(&self) -> (StatusCode, BTreeMap<String, Vec<u8>>, &str) {
        let headers =
            self.headers.iter().filter(|(name, _)| *name != "x-request-id" && *name != header::DATE);
        let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        (self.status, headers.collect(), &self.body)
    }
}

fn without_redirects() -> reqwest::Client {
    let builder = chancery_http_client::client_builder().tls_certs_only([]).no_proxy();
    let builder = builder.timeout(Duration::from_secs(60));
    // Idle connections would be closed while a test does something else for minutes.
    builder.pool_max_idle_per_host(0).build().unwrap()
}

async fn send(request: reqwest::RequestBuilder, form: Option<String>) -> PortalResponse {
    let request = match form {
        Some(form) => request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form),
        None => request,
    };
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    PortalResponse { status, headers, body: response.text().await.unwrap() }
}

/// Cookie jars of the two origins.
#[derive(Default)]
struct Cookies(BTreeMap<String, CookieJar>);

impl Cookies {
    fn value(&self, origin: &str, name: &str) -> Option<String> {
        self.0.get(origin)?.get(name).map(str::to_owned)
    }

    async fn send(&mut self, http: &reqwest::Client, url: &Url, form: Option<String>) -> PortalResponse {
        let cookies = self.0.entry(url.origin().ascii_serialization()).or_default();
        let method = if form.is_some() { Method::POST } else { Method::GET };
        let request = http.request(method, url.clone()).header(header::ACCEPT, HTML);
        let sent = cookies.header(url.path()).unwrap_or_default();
        let response = send(request.header(header::COOKIE, sent), form).await;
        for cookie in response.headers.get_all(header::SET_COOKIE) {
            cookies.keep(cookie.to_str().unwrap());
        }
        response
    }
}

/// Returns the action of the page's first form, and its hidden fields.
fn first_form(html: &str) -> (String, Vec<(String, String)>) {
    let (_, form) = html.split_once("<form").unwrap_or_else(|| panic!("no form in {html}"));
    let (form, _) = form.split_once("</form>").unwrap();
    let hidden = form.split("<input type=\"hidden\"").skip(1);
    let fields = hidden.map(|input| (attribute(input, "name"), attribute(input, "value")));
    (attribute(form, "action"), fields.collect())
}

fn attribute(tag: &str, name: &str) -> String {
    let (_, value) = tag.split_once(&format!("{name}=\"")).unwrap();
    let escaped = value.split('"').next().unwrap();
    let signs = [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&#38;", "&")];
    signs.iter().fold(escaped.to_owned(), |text, (escape, sign)| text.replace(escape, sign))
}

fn form_body(fields: &[(impl AsRef<str>, impl AsRef<str>)]) -> String {
    let url = Url::parse_with_params("http://form.invalid/", fields).unwrap();
    url.query().unwrap_or_default().to_owned()
}
