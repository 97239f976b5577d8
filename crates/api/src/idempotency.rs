//! The header `Idempotency-Key`: a caller's own name for a request, by which sending it again does not run it again.
//! What that means is decided by `chancery_metering`; here the key is read, the request gets a fingerprint by which two
//! that mean the same are the same, and a reply that was generated before is marked.

use crate::error::ApiError;
use crate::json::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use chancery_domain::{Fingerprint, IdempotencyKey};
use chancery_metering::Idempotency;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The key's name as callers know it.
pub(crate) const KEY_NAME: &str = "Idempotency-Key";

/// None where the header is not there. The body is one that was found to be good.
pub(crate) fn read(headers: &HeaderMap, path: &str, body: &[u8]) -> Result<Option<Idempotency>, ApiError> {
    let mut sent = headers.get_all(KEY).iter();
    let key = match (sent.next(), sent.next()) {
        (None, _) => return Ok(None),
        (Some(only), None) => only,
        (Some(_), Some(_)) => {
            let reason = format!("`{KEY_NAME}` was sent more than once; send it once");
            return Err(ApiError::invalid_value(KEY_NAME, reason));
        }
    };
    let key: Option<IdempotencyKey> = key.to_str().ok().and_then(|text| text.parse().ok());
    let key = key.ok_or_else(|| {
        let longest = IdempotencyKey::MAX_LENGTH;
        let reason = format!("`{KEY_NAME}` must be 1 to {longest} visible ASCII characters, without spaces");
        ApiError::invalid_value(KEY_NAME, reason)
    })?;
    let body = Json::parse(body)
        .map_err(|error| ApiError::malformed(format!("the body is not valid JSON: {error}")))?;
    Ok(Some(Idempotency { key, fingerprint: Fingerprint::of(path, &body.canonical()) }))
}

/// The header that marks a reply which was generated and billed before.
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
    fn a_request_is_the_same_however_it_is_spaced_ordered_and_escaped() {
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
    fn no_key_two_keys_and_a_key_that_is_none() {
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
