//! The `Idempotency-Key` header: retrying a request with the same key does not run it again. `chancery_metering`
//! implements this. This file reads the key, fingerprints the request so that equivalent bodies match, and marks
//! replayed replies.

use crate::error::ApiError;
use crate::json::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use chancery_domain::{Fingerprint, IdempotencyKey};
use chancery_metering::Idempotency;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The header name as shown to callers.
pub(crate) const KEY_NAME: &str = "Idempotency-Key";

/// Returns `None` without the header. The body has already passed validation.
pub(crate) fn read(headers: &HeaderMap, path: &str, body: &[u8]) -> Result<Option<Idempotency>, ApiError> {
    let mut received = headers.get_all(KEY).iter();
    let key = match (received.next(), received.next()) {
        (None, _) => return Ok(None),
        (Some(only), None) => only,
        (Some(_), Some(_)) => {
            let reason = format!("duplicate `{KEY_NAME}` header; send it once");
            return Err(ApiError::invalid_value(KEY_NAME, reason));
        }
    };
    let key: Option<IdempotencyKey> = key.to_str().ok().and_then(|text| text.parse().ok());
    let key = key.ok_or_else(|| {
        let max_length = IdempotencyKey::MAX_LENGTH;
        let reason =
            format!("`{KEY_NAME}` must be 1 to {max_length} visible ASCII characters, without spaces");
        ApiError::invalid_value(KEY_NAME, reason)
    })?;
    let body = Json::parse(body).map_err(|error| ApiError::malformed(format!("invalid JSON: {error}")))?;
    Ok(Some(Idempotency { key, fingerprint: Fingerprint::of(path, &body.canonical()) }))
}

/// The header that marks a replay: a reply that was generated and billed before.
pub(crate) fn mark(is_replay: bool) -> Option<[(HeaderName, HeaderValue); 1]> {
    is_replay.then_some([(REPLAYED, HeaderValue::from_static("true"))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(path: &str, body: &str) -> Fingerprint {
        let headers = HeaderMap::from_iter([(KEY, HeaderValue::from_static("k"))]);
        read(&headers, path, body.as_bytes()).unwrap().unwrap().fingerprint
    }

    #[test]
    fn fingerprint_ignores_whitespace_field_order_and_escapes() {
        let body = r#"{"model":"m","input":"é","max_output_tokens":8,"stop":["a","b"],"top_p":0.5}"#;
        let same = [
            r#"{ "stop" : [ "a", "b" ], "max_output_tokens": 8, "input":"é", "top_p":0.5, "model": "m" }"#,
            r#"{"model":"m","input":"\u00e9","max_output_tokens":8.0,"stop":["a","b"],"top_p":5e-1}"#,
        ];
        for other in same {
            assert_eq!(fingerprint("/v1/generate", other), fingerprint("/v1/generate", body), "{other}");
        }
        let different = [
            body.replace("\"m\"", "\"n\""),
            body.replace('é', "e"),
            body.replace(":8", ":9"),
            body.replace(r#"["a","b"]"#, r#"["b","a"]"#),
            body.replace("0.5", "0.25"),
            body.replace("0.5}", r#"0.5,"stream":true}"#),
            body.replace("0.5}", r#"0.5,"stream":false}"#),
            body.replace(":8", ":\"8\""),
        ];
        for other in different {
            assert_ne!(fingerprint("/v1/generate", &other), fingerprint("/v1/generate", body), "{other}");
        }
        assert_ne!(fingerprint("/v1/responses", body), fingerprint("/v1/generate", body));
    }

    #[test]
    fn idempotency_key_header_is_optional_single_and_well_formed() {
        assert_eq!(read(&HeaderMap::new(), "/", b"{}").unwrap(), None);
        let longest = "k".repeat(255);
        for good in ["k", "order-17", longest.as_str()] {
            let headers = HeaderMap::from_iter([(KEY, HeaderValue::from_str(good).unwrap())]);
            assert_eq!(read(&headers, "/", b"{}").unwrap().unwrap().key.as_str(), good);
        }
        let mut twice = HeaderMap::new();
        twice.append(KEY, HeaderValue::from_static("a"));
        twice.append(KEY, HeaderValue::from_static("a"));
        let only = |value: &[u8]| HeaderMap::from_iter([(KEY, HeaderValue::from_bytes(value).unwrap())]);
        for bad in [twice, only(b""), only(b"a b"), only(b"a\t"), only(b"\xc3\xa9"), only(&[b'k'; 256])] {
            let error = read(&bad, "/", b"{}").unwrap_err();
            assert_eq!((error.code, error.field.as_deref()), ("invalid_value", Some("Idempotency-Key")));
        }
    }
}
