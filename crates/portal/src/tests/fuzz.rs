//! Fuzz targets of the portal's forms and cookies, on real pages with a real store.

use super::firm::Firm;
use super::routes::cases::CASES;
use super::routes::{Fresh, HTML, JSON};
use crate::sign_in::session_cookie::{SESSION_COOKIE, sent_binding, sent_token};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use chancery_test_support::Fuzz;
use chancery_web::{CookieLookup, cookie_values, find_cookie};
use std::time::Duration;

const CRATE_FOLDER: &str = env!("CARGO_MANIFEST_DIR");
/// Must never reach a page as it is.
const MARKUP: &str = "<script>fuzz";

/// The first line is a method and a path, and the rest is the form. Each request is sent by a partner.
#[test]
fn portal_forms() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut firm, seeds) = runtime.block_on(async {
        let mut firm = Firm::open().await;
        let fresh = Fresh::make(&mut firm).await;
        let fill = |text: &str| fresh.fill(text, fresh.client());
        let cases = CASES.iter().filter(|case| case.method == "POST");
        let forms = cases.map(|case| format!("POST {}\n{}", fill(case.path), fill(case.form)));
        let queries = [
            "GET /clients?q=bakery&page=2&archived=yes\n",
            "GET /clients?disputes=overdue&sort=owner\n",
            "GET /home?view=mine\n",
            "GET /usage?from=2026-09&to=2026-11&account=1\n",
            "GET /invoices?state=open&page=1\n",
            "GET /audit?from=2026-11-01&to=2026-11-13&page=1&person=1\n",
            "GET /accounts/1\n",
        ];
        let seeds: Vec<Vec<u8>> = forms.chain(queries.map(str::to_owned)).map(String::into_bytes).collect();
        (firm, seeds)
    });
    let fuzz = Fuzz {
        name: "portal_forms",
        crate_folder: CRATE_FOLDER,
        seeds,
        tokens: &[
            "&",
            "=",
            "%",
            "%00",
            "%0A",
            "%F0%9F%98%80",
            "%ED%A0%80",
            "+",
            "name=",
            "version=",
            "owner=",
            "email=",
            "title=",
            "text=",
            "at=2026-02-30T25:00",
            "since=",
            "cap=",
            "rpm=",
            "amount=-0.001",
            "expires=",
            "page=",
            "from=",
            "to=",
            "9223372036854775808",
            "%3Cscript%3Efuzz",
            "name=%3Cscript%3Efuzz",
            "text=%3Cscript%3Efuzz",
            "/clients/",
            "/entries/",
            "/accounts/",
        ],
        iterations: 100,
    };
    fuzz.run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let (line, form) = text.split_once('\n').unwrap_or((&*text, ""));
        let (method, path) = line.split_once(' ').unwrap_or(("", line));
        // A partner who removes themselves ends the test.
        let is_about_people = path.starts_with("/team/") && !path.starts_with("/team/invitations");
        if !path.starts_with('/') || path.parse::<Uri>().is_err() || is_about_people {
            return;
        }
        for accept in [HTML, JSON] {
            runtime.block_on(send(&mut firm, accept, method, path, form));
        }
    });
}

async fn send(firm: &mut Firm, accept: &'static str, method: &str, path: &str, form: &str) {
    // Limits by time do not end the test.
    firm.portal.pass(Duration::from_secs(20));
    let browser = &mut firm.ruth.browser;
    browser.accept = accept;
    let reply = match method {
        "GET" => browser.get(path).await,
        _ => browser.post(path, form).await,
    };
    // The identity provider of these tests is unreachable, and drafting is off.
    let is_expected = reply.status == StatusCode::SERVICE_UNAVAILABLE
        && (path.starts_with("/auth/")
            || path.contains("/letters/draft")
            || path.contains("/letters/rewrite"));
    assert!(!reply.status.is_server_error() || is_expected, "{method} {path}: {reply:?}");
    let content_type = reply.headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap());
    if content_type.starts_with("text/html") {
        assert!(
            !reply.body.contains(MARKUP),
            "{method} {path} returns markup as it was sent: {}",
            reply.body
        );
    }
    if content_type.starts_with("application/json") {
        let json = serde_json::from_str::<serde_json::Value>(&reply.body);
        assert!(json.is_ok(), "{method} {path}: {}", reply.body);
    }
    // The session has ended, or the action needs a recent sign-in.
    if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&reply.status) {
        firm.ruth.browser = firm.ruth.elsewhere(&firm.portal).await;
    }
}

/// Each line is a `Cookie` header.
#[test]
fn cookies() {
    let token = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0U1v";
    let seeds = [
        format!("session={token}"),
        format!("a=1; session={token}; __Host-session_binding={token}; b=2"),
        format!("session={token}\nsession=planted"),
        "other=\u{ff}; session=".to_owned(),
    ];
    let fuzz = Fuzz {
        name: "cookies",
        crate_folder: CRATE_FOLDER,
        seeds: seeds.map(String::into_bytes).to_vec(),
        tokens: &[
            "session=",
            "; session=",
            ";session=x",
            "=",
            ";",
            "; ",
            "__Host-session_binding=",
            "Session=",
            "session =",
            "\t",
        ],
        iterations: 2_000,
    };
    fuzz.run(|bytes| {
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut headers: HeaderMap = lines
            .filter_map(|line| HeaderValue::from_bytes(line).ok())
            .map(|line| (header::COOKIE, line))
            .collect();
        let name = SESSION_COOKIE.name;
        let values: Vec<String> = cookie_values(&headers, name).map(str::to_owned).collect();
        match find_cookie(&headers, name) {
            CookieLookup::None => assert!(values.is_empty()),
            CookieLookup::One(value) => assert_eq!(values, [value]),
            CookieLookup::Multiple => assert!(values.len() > 1 && sent_token(&headers).is_err()),
        }
        if let [value] = values.as_slice() {
            assert!(!value.contains(';'), "a cookie ends at the semicolon: {value:?}");
            // A token has one spelling.
            if let Ok(Some(token)) = sent_token(&headers) {
                assert_eq!(token.reveal(), value);
                let set = SESSION_COOKIE.set(token.reveal(), None).unwrap();
                let sent_back = set.to_str().unwrap().split(';').next().unwrap();
                let sent_back =
                    HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(sent_back).unwrap())]);
                assert_eq!(find_cookie(&sent_back, name), CookieLookup::One(value));
            }
        }
        let _ = sent_binding(&headers);
        // A second cookie is never hidden by what stands before it.
        headers.append(header::COOKIE, HeaderValue::from_static("session=planted"));
        assert_eq!(cookie_values(&headers, name).count(), values.len() + 1);
    });
}
