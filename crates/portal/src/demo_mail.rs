//! `GET /mail`: the email of a demo, newest first, so that its codes can be read without a mailbox. It needs no session,
//! because it has the codes of sign-ins; so only a demo has it, which serves one machine. Everywhere else the page does not
//! exist.

use crate::error::PageError;
use crate::state::Portal;
use crate::time_format::utc_text;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use chancery_domain::is_loopback_host;
use chancery_mail::SentEmail;
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

pub const MAIL_PATH: &str = "/mail";

#[derive(Template)]
#[template(path = "demo_mail_page.html")]
struct MailPage<'a> {
    firm_name: &'a str,
    emails: Vec<ShownEmail>,
}

struct ShownEmail {
    to: String,
    reply_to: Option<String>,
    subject: String,
    attachment: Option<String>,
    at_iso: String,
    at: String,
    parts: Vec<Part>,
}

/// A piece of an email's text.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    text: String,
    is_link: bool,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let emails = portal.mailer.sent_emails().filter(|_| is_for_this_machine(&uri, &headers));
    let Some(emails) = emails else { return Err(ErrorPage::not_found().into()) };
    let settings = &portal.settings;
    let own_urls = [settings.public_url.as_str(), settings.identity.issuer.as_str()];
    let shown = MailPage {
        firm_name: &settings.firm_name,
        emails: emails.into_iter().map(|email| ShownEmail::new(email, &own_urls)).collect(),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

/// Another site can point its name at this machine and read what a browser here fetches under that name.
fn is_for_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/2 has the host in the address.
    let host = host.or_else(|| uri.host()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    is_loopback_host(name)
}

impl ShownEmail {
    fn new(email: SentEmail, own_urls: &[&str]) -> Self {
        let SentEmail { to, reply_to, subject, text, attachment, at } = email;
        let (at_iso, at, parts) = (at.to_iso(), utc_text(at), parts(&text, own_urls));
        Self { to, reply_to, subject, attachment, at_iso, at, parts }
    }
}

/// Only our own addresses become links: others may write parts of an email.
fn parts(text: &str, own_urls: &[&str]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for word in text.split_inclusive(char::is_whitespace) {
        let trimmed = word.trim_end_matches(|c: char| c.is_whitespace() || ".,;)>".contains(c));
        let is_link = own_urls.iter().any(|url| {
            trimmed.strip_prefix(url).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
        });
        let link = if is_link { trimmed } else { "" };
        push(&mut parts, link, true);
        push(&mut parts, &word[link.len()..], false);
    }
    parts
}

/// Extends the last part where it is of the same kind.
fn push(parts: &mut Vec<Part>, text: &str, is_link: bool) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(last) if !is_link && !last.is_link => last.text.push_str(text),
        _ => parts.push(Part { text: text.to_owned(), is_link }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn part(text: &str, is_link: bool) -> Part {
        Part { text: text.to_owned(), is_link }
    }

    #[test]
    fn only_our_own_addresses_become_links() {
        let own_urls = ["http://localhost:8081", "http://127.0.0.1:8082"];
        assert_eq!(
            parts("Open http://localhost:8081/team?x=1.\nThen\n http://127.0.0.1:8082", &own_urls),
            [
                part("Open ", false),
                part("http://localhost:8081/team?x=1", true),
                part(".\nThen\n ", false),
                part("http://127.0.0.1:8082", true),
            ]
        );
        for text in [
            "http://localhost:80811/x",
            "https://evil.example/",
            "javascript:alert(1)",
            "(http://localhost:8081/)",
        ] {
            assert_eq!(parts(text, &own_urls), [part(text, false)]);
        }
    }

    #[test]
    fn mail_page_answers_only_under_a_name_of_this_machine() {
        for (host, is_ours) in [
            ("localhost:8081", true),
            ("127.0.0.1:8081", true),
            ("[::1]:8081", true),
            ("localhost", true),
            ("rebound.example:8081", false),
            ("localhost.example", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            assert_eq!(is_for_this_machine(&Uri::from_static("/mail"), &headers), is_ours, "{host}");
        }
    }
}
