//! The demonstration firm, its people signed in over plain HTTP: what a browser does, step by step, with nothing in between.

use crate::browser::Browser;
use crate::server::{Firm, Server};
use chancery_test_support::CookieJar;
use reqwest::header::{self, HeaderMap};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a browser says it wants.
const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";
const JSON: &str = "application/json";
/// From the portal's button back to the portal: two pages and their redirects.
const MAX_STEPS_TO_SIGN_IN: usize = 16;

/// A server with the demonstration firm.
pub struct Office {
    pub firm: Firm,
    pub server: Server,
}

/// Somebody with a session, who asks without a browser.
pub struct Somebody {
    pub email: String,
    /// The value of the cookie `session`.
    pub session: String,
    portal: String,
    http: reqwest::Client,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Office {
    pub fn open() -> Self {
        let firm = Firm::new().with("CHANCERY_PORTAL__FIRM_NAME", "Marlow & Finch");
        let server = firm.start_with(&["--demo"]);
        Self { firm, server }
    }

    pub fn portal(&self, path: &str) -> String {
        format!("{}{path}", self.server.portal)
    }

    /// The whole way: the portal's button, the provider's form, its consent page, and back.
    pub async fn sign_in(&self, name: &str) -> Somebody {
        sign_in(&self.firm, &self.server.portal, name).await
    }
}

/// The demonstration firm's own password for them.
fn password(firm: &Firm, email: &str) -> String {
    let demo = std::fs::read(firm.data().join("demo.json")).unwrap();
    let demo: Value = serde_json::from_slice(&demo).unwrap();
    let user = demo["users"].as_array().unwrap().iter().find(|user| user["email"] == email).unwrap();
    user["password"].as_str().unwrap().to_owned()
}

/// Somebody of the demonstration firm, which is that firm's, signs in at the portal with that address.
pub async fn sign_in(firm: &Firm, portal: &str, name: &str) -> Somebody {
    let email = format!("{name}@example.com");
    let password = password(firm, &email);
    let http = without_redirects();
    let mut cookies = Cookies::default();
    let mut url: Url = format!("{portal}/auth/sign-in").parse().unwrap();
    let mut form = None;
    for _ in 0..MAX_STEPS_TO_SIGN_IN {
        let answer = cookies.send(&http, &url, form.take()).await;
        if let Some(session) = cookies.value(portal, "session") {
            return Somebody { email, session, portal: portal.to_owned(), http };
        }
        if let Some(location) = answer.headers.get(header::LOCATION) {
            url = url.join(location.to_str().unwrap()).unwrap();
            continue;
        }
        let (action, mut fields) = first_form(&answer.body);
        url = url.join(&action).unwrap();
        if answer.body.contains("name=\"password\"") {
            fields.push(("email".to_owned(), email.clone()));
            fields.push(("password".to_owned(), password.clone()));
        } else {
            fields.push(("decision".to_owned(), "allow".to_owned()));
        }
        form = Some(form_body(&fields));
    }
    panic!("{email} did not come to a session, but to {url}");
}

impl Somebody {
    pub fn name(&self) -> &str {
        self.email.split('@').next().unwrap()
    }

    /// The same session, shown to another node.
    pub fn at(&self, portal: &str) -> Self {
        let (email, session, http) = (self.email.clone(), self.session.clone(), self.http.clone());
        Self { email, session, portal: portal.to_owned(), http }
    }

    pub async fn page(&self, path: &str) -> Answer {
        self.send(Method::GET, path, HTML, None).await
    }

    pub async fn json(&self, path: &str) -> Answer {
        self.send(Method::GET, path, JSON, None).await
    }

    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.send(Method::POST, path, HTML, Some(form_body(fields))).await
    }

    async fn send(&self, method: Method, path: &str, accept: &str, form: Option<String>) -> Answer {
        let request = self.http.request(method, format!("{}{path}", self.portal));
        let request = request.header(header::COOKIE, format!("session={}", self.session));
        send(request.header(header::ACCEPT, accept), form).await
    }

    /// Every client that the list shows to them, page by page.
    pub async fn clients(&self) -> Vec<Value> {
        let (mut clients, mut page) = (Vec::new(), 1);
        loop {
            let answer = self.json(&format!("/clients?page={page}")).await.value();
            clients.extend(answer["clients"].as_array().unwrap().iter().cloned());
            if answer["pages"] == page {
                assert_eq!(answer["total"], clients.len());
                return clients;
            }
            page += 1;
        }
    }

    /// The browser is theirs from here on.
    pub async fn sit_down_at(&self, browser: &Browser) {
        browser.forget_cookies().await;
        browser.set_cookie(&self.portal, "session", &self.session).await;
    }
}

impl Answer {
    /// The JSON of a reply that went well.
    pub fn value(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn location(&self) -> &str {
        self.headers.get(header::LOCATION).map_or("", |location| location.to_str().unwrap())
    }

    /// Everything that somebody who guesses could compare: what must differ from request to request is left out.
    pub fn without_its_request(&self) -> (StatusCode, BTreeMap<String, Vec<u8>>, &str) {
        let headers =
            self.headers.iter().filter(|(name, _)| *name != "x-request-id" && *name != header::DATE);
        let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        (self.status, headers.collect(), &self.body)
    }
}

fn without_redirects() -> reqwest::Client {
    let builder = chancery_http_client::client_builder().no_proxy().timeout(Duration::from_secs(60));
    // A connection that waits while a test does something else for minutes is closed meanwhile.
    builder.pool_max_idle_per_host(0).build().unwrap()
}

async fn send(request: reqwest::RequestBuilder, form: Option<String>) -> Answer {
    let request = match form {
        Some(form) => request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form),
        None => request,
    };
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    Answer { status, headers, body: response.text().await.unwrap() }
}

/// Of the two origins, each with its own.
#[derive(Default)]
struct Cookies(BTreeMap<String, CookieJar>);

impl Cookies {
    fn value(&self, origin: &str, name: &str) -> Option<String> {
        self.0.get(origin)?.get(name).map(str::to_owned)
    }

    async fn send(&mut self, http: &reqwest::Client, url: &Url, form: Option<String>) -> Answer {
        let cookies = self.0.entry(url.origin().ascii_serialization()).or_default();
        let method = if form.is_some() { Method::POST } else { Method::GET };
        let request = http.request(method, url.clone()).header(header::ACCEPT, HTML);
        let sent = cookies.header(url.path()).unwrap_or_default();
        let answer = send(request.header(header::COOKIE, sent), form).await;
        for cookie in answer.headers.get_all(header::SET_COOKIE) {
            cookies.keep(cookie.to_str().unwrap());
        }
        answer
    }
}

/// Where the first form of a page goes, and its hidden fields.
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
