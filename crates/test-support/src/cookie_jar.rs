//! A browser's cookies as a server sees them: by name, sent to their path and below, until they expire. Tests provide everything
//! else of a browser (headers, redirects, forms) themselves.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::ops::Index;
use tower_service::Service;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CookieJar(BTreeMap<String, Cookie>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cookie {
    value: String,
    path: String,
}

impl CookieJar {
    /// Sends a request with its cookies to a router, and stores the cookies that the response sets.
    pub async fn send(&mut self, router: &Router, mut request: Request<Body>) -> Response<Vec<u8>> {
        if let Some(cookies) = self.header(request.uri().path()) {
            request.headers_mut().insert(header::COOKIE, HeaderValue::from_str(&cookies).unwrap());
        }
        let (parts, body) = router.clone().call(request).await.unwrap().into_parts();
        for cookie in parts.headers.get_all(header::SET_COOKIE) {
            self.keep(cookie.to_str().unwrap());
        }
        Response::from_parts(parts, body.collect().await.unwrap().to_bytes().to_vec())
    }

    /// The `Cookie` header of a request to this path.
    pub fn header(&self, path: &str) -> Option<String> {
        let is_sent = |cookie: &Cookie| {
            let below = path.strip_prefix(&cookie.path);
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || cookie.path.ends_with('/'))
        };
        let sent = self.0.iter().filter(|(_, cookie)| is_sent(cookie));
        let sent: Vec<String> = sent.map(|(name, cookie)| format!("{name}={}", cookie.value)).collect();
        (!sent.is_empty()).then(|| sent.join("; "))
    }

    /// Applies one `Set-Cookie` header.
    pub fn keep(&mut self, set_cookie: &str) {
        let mut parts = set_cookie.split("; ");
        let (name, value) = parts.next().unwrap().split_once('=').unwrap();
        let path = parts.clone().find_map(|part| part.strip_prefix("Path=")).unwrap_or("/").to_owned();
        if parts.any(|part| part == "Max-Age=0") {
            self.0.remove(name);
        } else {
            self.0.insert(name.to_owned(), Cookie { value: value.to_owned(), path });
        }
    }

    /// Sets or replaces a value. A new cookie is sent to every path.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let cookie = self.0.entry(name.into());
        cookie.or_insert(Cookie { value: String::new(), path: "/".to_owned() }).value = value.into();
    }

    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name).map(|cookie| cookie.value)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|cookie| cookie.value.as_str())
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|cookie| cookie.value.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Index<&str> for CookieJar {
    type Output = String;

    fn index(&self, name: &str) -> &String {
        &self.0[name].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_sent_to_its_path_and_subpaths_until_it_expires() {
        let mut jar = CookieJar::default();
        jar.keep("session=one; Path=/; HttpOnly; Secure; SameSite=Lax");
        jar.keep("sign_in=two; Path=/auth; Max-Age=600; HttpOnly; Secure; SameSite=Lax");
        for path in ["/auth", "/auth/callback"] {
            assert_eq!(jar.header(path).unwrap(), "session=one; sign_in=two");
        }
        for path in ["/", "/authority"] {
            assert_eq!(jar.header(path).unwrap(), "session=one");
        }
        jar.keep("session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax");
        assert_eq!(jar.header("/"), None);
        assert_eq!((jar.keys().collect::<Vec<_>>(), &jar["sign_in"][..]), (vec!["sign_in"], "two"));
    }
}
