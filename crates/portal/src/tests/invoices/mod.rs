//! Invoices, as partners and only partners see them.

mod access;
mod credits;
mod documents;
mod html_escaping;
mod issuing;
mod list;
mod payments;

use super::browser::Reply;
use super::firm::Firm;
use super::routes::{HTML, JSON};
use axum::http::StatusCode;
use serde_json::Value;

async fn page(firm: &mut Firm, path: &str) -> String {
    firm.ruth.browser.accept = HTML;
    let reply = firm.ruth.browser.get(path).await;
    assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
    reply.body
}

async fn json(firm: &mut Firm, path: &str) -> Value {
    firm.ruth.browser.accept = JSON;
    let reply = firm.ruth.browser.get(path).await;
    firm.ruth.browser.accept = HTML;
    assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

/// Makes a change that redirects. Returns the target without its confirmation, and the page there.
async fn done(firm: &mut Firm, path: &str, form: &str) -> (String, String) {
    firm.ruth.browser.accept = HTML;
    let reply = firm.ruth.browser.post(path, form).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{path}: {}", reply.body);
    let location = reply.location().to_owned();
    let shown = page(firm, &location).await;
    (location.split('?').next().unwrap().to_owned(), shown)
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

fn assert_has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
}

fn assert_has_not(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(!page.contains(part), "{part:?} in {page}");
    }
}

fn rejected(reply: &Reply, status: StatusCode, parts: &[&str]) {
    assert_eq!(reply.status, status, "{}", reply.body);
    assert_has(&reply.body, parts);
}
