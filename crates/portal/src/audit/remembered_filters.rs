//! The filters that a person last applied, in a cookie: opening `/audit` without any shows them again. The cookie names the
//! person, so that the next one to sign in at the same browser starts without filters.

use super::filters::Filters;
use crate::time_format::LocalTime;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_web::{Cookie, CookieLookup, find_cookie};
use std::time::Duration;

pub(super) const PATH: &str = "/audit";
/// The link that forgets them.
pub(super) const CLEAR: &str = "/audit?clear=1";

const COOKIE: Cookie = Cookie { name: "__Host-audit_filters", path: "/" };
const TTL: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// Where to go instead, if the request has no filters but asks to clear them, or has remembered ones.
pub(super) fn redirect(
    person: PersonId,
    headers: &HeaderMap,
    pairs: &[(String, String)],
    local: &LocalTime,
) -> Option<Response> {
    if pairs.iter().any(|(name, _)| name == "clear") {
        let mut response = Redirect::to(PATH).into_response();
        if let Some(cookie) = COOKIE.expire() {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        return Some(response);
    }
    if !pairs.is_empty() {
        return None;
    }
    let CookieLookup::One(value) = find_cookie(headers, COOKIE.name) else { return None };
    let query = value.strip_prefix(&format!("{person}."))?;
    let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let filters = Filters::read(&pairs, local);
    // Written again from what was understood: a cookie may hold anything.
    let is_usable = filters.has_any() && !filters.problems.any();
    is_usable.then(|| Redirect::to(&filters.href(PATH, None)).into_response())
}

/// Remembers valid filters; a form without any forgets them.
pub(super) fn remember(response: &mut Response, person: PersonId, headers: &HeaderMap, filters: &Filters) {
    let has_cookie = find_cookie(headers, COOKIE.name) != CookieLookup::None;
    let cookie = match filters.href("", None).strip_prefix('?') {
        _ if filters.problems.any() => None,
        Some(query) => COOKIE.set(&format!("{person}.{query}"), Some(TTL)),
        None if has_cookie => COOKIE.expire(),
        None => None,
    };
    if let Some(cookie) = cookie {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use chancery_domain::UnixMillis;

    fn location(person: i64, cookie: &str, query: &str) -> Option<String> {
        let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(cookie).unwrap())]);
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let local = LocalTime::utc(UnixMillis(0));
        let response = redirect(PersonId(person), &headers, &pairs, &local)?;
        Some(response.headers()[header::LOCATION].to_str().unwrap().to_owned())
    }

    #[test]
    fn filters_are_remembered_for_the_person_who_applied_them() {
        let cookie = "__Host-audit_filters=3.client=1042&decision=refused";
        assert_eq!(location(3, cookie, "").as_deref(), Some("/audit?client=1042&decision=refused"));
        assert_eq!(location(4, cookie, ""), None, "another person");
        assert_eq!(location(3, cookie, "person=5"), None, "other filters are applied");
        assert_eq!(location(3, cookie, "client=&person="), None, "a form without filters");
        assert_eq!(location(3, cookie, "clear=1").as_deref(), Some("/audit"));
    }

    #[test]
    fn invalid_remembered_filters_are_ignored() {
        for value in ["3.client=ten", "3.", "", "3.x=y"] {
            assert_eq!(location(3, &format!("__Host-audit_filters={value}"), ""), None, "{value}");
        }
    }
}
