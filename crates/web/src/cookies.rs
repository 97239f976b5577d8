//! Cookies, as narrow as they can be: for this host alone, never for scripts, over TLS (or on this machine) alone.

use axum::http::{HeaderMap, HeaderValue, header};
use std::time::Duration;

/// What a request says about one name.
#[derive(Debug, PartialEq, Eq)]
pub enum SentCookie<'a> {
    None,
    One(&'a str),
    /// Somebody else set one beside ours; which is whose, nobody can tell.
    Several,
}

/// Looks for a cookie by its name. Others beside it, which may be of any bytes, are none of our business.
pub fn sent_cookie<'a>(headers: &'a HeaderMap, name: &str) -> SentCookie<'a> {
    let mut values = sent_cookies(headers, name);
    match (values.next(), values.next()) {
        (None, _) => SentCookie::None,
        (Some(value), None) => SentCookie::One(value),
        (Some(_), Some(_)) => SentCookie::Several,
    }
}

/// All that were sent under a name, for whoever ends what they open.
pub fn sent_cookies<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    let cookies = lines.flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    let values = cookies.filter_map(|cookie| cookie.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    // What is not even text is a cookie that opens nothing.
    values.map(|value| std::str::from_utf8(value).unwrap_or_default())
}

/// A cookie to be set or taken back.
#[derive(Clone, Copy, Debug)]
pub struct Cookie {
    pub name: &'static str,
    /// The browser sends it to this path and those below it.
    pub path: &'static str,
}

impl Cookie {
    /// `value` must be of a cookie's plain letters; ours are. Without `lasts` it goes with the browser.
    pub fn set(&self, value: &str, lasts: Option<Duration>) -> Option<HeaderValue> {
        let max_age = lasts.map_or_else(String::new, |lasts| format!("; Max-Age={}", lasts.as_secs()));
        let Self { name, path } = self;
        HeaderValue::from_str(&format!(
            "{name}={value}; Path={path}{max_age}; HttpOnly; Secure; SameSite=Lax"
        ))
        .ok()
    }

    pub fn take_back(&self) -> Option<HeaderValue> {
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
    fn one_cookie_is_found_among_others_and_two_of_one_name_are_noticed() {
        let sent = headers(&["a=1; session=x; b=2"]);
        assert_eq!(sent_cookie(&sent, "session"), SentCookie::One("x"));
        assert_eq!(sent_cookie(&sent, "sess"), SentCookie::None);
        assert_eq!(sent_cookie(&headers(&[]), "session"), SentCookie::None);
        assert_eq!(sent_cookie(&headers(&["session=x; session=x"]), "session"), SentCookie::Several);
        assert_eq!(sent_cookie(&headers(&["session=x", "session=y"]), "session"), SentCookie::Several);
        assert_eq!(sent_cookie(&headers(&["session="]), "session"), SentCookie::One(""));
        let mixed = HeaderValue::from_bytes(b"other=\xff\xe4; session=x").unwrap();
        let mixed = HeaderMap::from_iter([(header::COOKIE, mixed)]);
        assert_eq!(sent_cookie(&mixed, "session"), SentCookie::One("x"), "another's cookie hides nothing");
    }

    #[test]
    fn a_cookie_is_for_this_host_alone_and_not_for_scripts() {
        let cookie = Cookie { name: "session", path: "/" };
        assert_eq!(cookie.set("v", None).unwrap(), "session=v; Path=/; HttpOnly; Secure; SameSite=Lax");
        assert_eq!(
            cookie.take_back().unwrap(),
            "session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax"
        );
    }
}
