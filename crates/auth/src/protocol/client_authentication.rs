//! Authenticates the client at `/token`: by its secret, in the header or in the form. A public client sends only its
//! id, and PKCE proves that it started the flow.

use super::parameters::Parameters;
use super::token::TokenError;
use crate::{Client, ProviderSettings};
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The credentials in a `client_secret_basic` header.
#[derive(Debug, PartialEq, Eq)]
struct Basic {
    id: String,
    secret: String,
}

pub(super) fn authenticate<'a>(
    settings: &'a ProviderSettings,
    headers: &HeaderMap,
    parameters: &Parameters,
) -> Result<&'a Client, TokenError> {
    let (form_id, form_secret) = (parameters.one("client_id")?, parameters.one("client_secret")?);
    let basic = basic(headers)?;
    let (id, secret) = match &basic {
        Some(_) if form_secret.is_some() => {
            return Err(TokenError::invalid_request(
                "send the client secret in the header or in the form, not both",
            ));
        }
        Some(Basic { id, .. }) if form_id.is_some_and(|form_id| form_id != id) => {
            return Err(TokenError::invalid_request("client_id in the form and in the header differ"));
        }
        Some(Basic { id, secret }) => {
            (id.as_str(), Some(secret.as_str()).filter(|secret| !secret.is_empty()))
        }
        None => (form_id.ok_or_else(TokenError::invalid_client)?, form_secret),
    };
    let client = settings.client(id).ok_or_else(TokenError::invalid_client)?;
    let is_valid = match (&client.secret, secret) {
        (Some(own), Some(sent)) => is_same(own, sent),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    match is_valid {
        true => Ok(client),
        false => Err(TokenError::invalid_client()),
    }
}

/// Compares in constant time without revealing the length.
fn is_same(own: &str, sent: &str) -> bool {
    Sha256::digest(own.as_bytes()).ct_eq(&Sha256::digest(sent.as_bytes())).into()
}

fn basic(headers: &HeaderMap) -> Result<Option<Basic>, TokenError> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    let invalid = || TokenError::invalid_client();
    let read = || {
        let (scheme, encoded) = line.to_str().ok()?.split_once(' ')?;
        let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (id, secret) = text.split_once(':')?;
        let is_basic = scheme.eq_ignore_ascii_case("basic");
        is_basic.then(|| Basic { id: decoded(id), secret: decoded(secret) })
    };
    match (read(), lines.next()) {
        (Some(basic), None) => Ok(Some(basic)),
        _ => Err(invalid()),
    }
}

/// Both parts are form-encoded (RFC 6749, 2.3.1).
fn decoded(text: &str) -> String {
    // Encoded text contains no `=` or `&`, so text with either was not encoded.
    let name = form_urlencoded::parse(text.as_bytes()).next().filter(|_| !text.contains(['=', '&']));
    name.map_or_else(|| text.to_owned(), |(name, _)| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ProviderSettings {
        let client = |id: &str, secret: Option<&str>| Client {
            id: id.to_owned(),
            name: id.to_owned(),
            secret: secret.map(str::to_owned),
            redirect_uris: vec![],
            post_logout_redirect_uris: vec![],
            backchannel_logout_uri: None,
        };
        ProviderSettings {
            trusted_proxies: chancery_web::TrustedProxies::default(),
            second_factor: crate::SecondFactorPolicy::default(),
            hsts_include_subdomains: false,
            issuer: String::new(),
            firm_name: String::new(),
            company_domain: "example.com".parse().unwrap(),
            clients: vec![client("portal", Some("s3cret +%")), client("public", None)],
        }
    }

    fn authenticated_client(authorization: &[&str], form: &str) -> Result<String, &'static str> {
        let lines = authorization.iter().map(|line| (header::AUTHORIZATION, line.parse().unwrap()));
        let (settings, headers) = (settings(), lines.collect());
        let client = authenticate(&settings, &headers, &Parameters::parse(form).unwrap());
        client.map(|client| client.id.clone()).map_err(|error| error.code)
    }

    fn header(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn client_secret_is_accepted_in_header_or_form_not_both() {
        let right = header("portal:s3cret+%2B%25");
        let named = |id: &str| Ok(id.to_owned());
        assert_eq!(authenticated_client(&[&right], ""), named("portal"));
        assert_eq!(
            authenticated_client(&[&right.replace("Basic", "bAsIc")], "client_id=portal"),
            named("portal")
        );
        assert_eq!(
            authenticated_client(&[], "client_id=portal&client_secret=s3cret+%2B%25"),
            named("portal")
        );
        assert_eq!(authenticated_client(&[], "client_id=public"), named("public"));
        assert_eq!(authenticated_client(&[&header("public:")], ""), named("public"));
        for (authorization, form, error) in [
            (vec![right.as_str()], "client_secret=s3cret+%2B%25", "invalid_request"),
            (vec![right.as_str()], "client_id=public", "invalid_request"),
            (vec![right.as_str(), right.as_str()], "", "invalid_client"),
            (vec![&header("portal:wrong")], "", "invalid_client"),
            (vec![&header("portal:")], "", "invalid_client"),
            (vec![&header("portal")], "", "invalid_client"),
            (vec![&header("nobody:s3cret")], "", "invalid_client"),
            (vec!["Basic ***"], "client_id=public", "invalid_client"),
            (vec!["Bearer abc"], "client_id=public", "invalid_client"),
            (vec![], "", "invalid_client"),
            (vec![], "client_id=portal", "invalid_client"),
            (vec![], "client_id=portal&client_secret=wrong", "invalid_client"),
            (vec![], "client_id=public&client_secret=any", "invalid_client"),
            (vec![], "client_id=nobody", "invalid_client"),
            (vec![], "client_id=public&client_id=public", "invalid_request"),
        ] {
            assert_eq!(authenticated_client(&authorization, form), Err(error), "{authorization:?} {form}");
        }
    }
}
