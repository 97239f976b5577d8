//! Cookies with the narrowest scope: this host only, `HttpOnly`, and over TLS (or on this machine) only.

use axum::http::{HeaderMap, HeaderValue, header};
use std::time::Duration;

/// The cookies that a request sent under one name.
#[derive(Debug, PartialEq, Eq)]
pub enum CookieLookup<'a> {
    None,
    One(&'a str),
    /// Something else set a second cookie with this name, and nothing tells them apart.
    Multiple,
}

/// Finds a cookie by name. Other cookies may contain any bytes and are ignored.
pub fn find_cookie<'a>(headers: &'a HeaderMap, name: &str) -> CookieLookup<'a> {
    let mut values = cookie_values(headers, name);
    match (values.next(), values.next()) {
        (None, _) => CookieLookup::None,
        (Some(value), None) => CookieLookup::One(value),
        (Some(_), Some(_)) => CookieLookup::Multiple,
    }
}

/// Every cookie that was sent under a name, for sign-out, which ends the sessions of all of them.
pub fn cookie_values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    let cookies = lines.flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    let values = cookies.filter_map(|cookie| cookie.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    // Not UTF-8: treat it as a value that matches nothing.
    values.map(|value| std::str::from_utf8(value).unwrap_or_default())
}

/// A cookie to set or delete. Browsers accept a name that starts with `__Host-` only with `Path=/`, over TLS or on this
/// machine, and from this very host: no sibling subdomain can plant it.
#[derive(Clone, Copy, Debug)]
pub struct Cookie {
    pub name: &'static str,
    /// The browser sends the cookie to this path and those below it.
    pub path: &'static str,
}

impl Cookie {
    /// `value` must consist of plain cookie characters; ours do. Without `ttl` it is a session cookie.
    pub fn set(&self, value: &str, ttl: Option<Duration>) -> Option<HeaderValue> {
        let max_age = ttl.map_or_else(String::new, |ttl| format!("; Max-Age={}", ttl.as_secs()));
        let Self { name, path } = self;
        HeaderValue::from_str(&format!(
            "{name}={value}; Path={path}{max_age}; HttpOnly; Secure; SameSite=Lax"
        ))
        .ok()
    }

    pub fn expire(&self) -> Option<HeaderValue> {
        self.set("", Some(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (header::COOKIE, HeaderValue::from_str(line).unwrap())).collect()
    }

    #[test]
    fn duplicate_cookie_names_are_detected() {
        let sent = headers(&["a=1; session=x; b=2"]);
        assert_eq!(find_cookie(&sent, "session"), CookieLookup::One("x"));
        assert_eq!(find_cookie(&sent, "sess"), CookieLookup::None);
        assert_eq!(find_cookie(&headers(&[]), "session"), CookieLookup::None);
        assert_eq!(find_cookie(&headers(&["session=x; session=x"]), "session"), CookieLookup::Multiple);
        assert_eq!(find_cookie(&headers(&["session=x", "session=y"]), "session"), CookieLookup::Multiple);
        assert_eq!(find_cookie(&headers(&["session="]), "session"), CookieLookup::One(""));
        let mixed = HeaderValue::from_bytes(b"other=\xff\xe4; session=x").unwrap();
        let mixed = HeaderMap::from_iter([(header::COOKIE, mixed)]);
        assert_eq!(find_cookie(&mixed, "session"), CookieLookup::One("x"), "another's cookie hides nothing");
    }

    #[test]
    fn cookies_are_host_only_and_http_only() {
        let cookie = Cookie { name: "session", path: "/" };
        assert_eq!(cookie.set("v", None).unwrap(), "session=v; Path=/; HttpOnly; Secure; SameSite=Lax");
        assert_eq!(cookie.expire().unwrap(), "session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax");
    }
}
