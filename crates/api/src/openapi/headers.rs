//! Response headers, each described once and referenced wherever it can occur.

use crate::idempotency::KEY_NAME;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Components, Ref, RefOr};

struct ReplyHeader {
    name: &'static str,
    description: &'static str,
    example: &'static str,
    kind: Type,
    /// Whether a response with this status can carry the header.
    applies_to: fn(status: &str, endpoint: Endpoint) -> bool,
}

/// The properties of an endpoint that determine its headers.
#[derive(Clone, Copy)]
struct Endpoint {
    needs_key: bool,
    takes_idempotency_key: bool,
}

const fn account_header(
    name: &'static str,
    kind: Type,
    example: &'static str,
    description: &'static str,
) -> ReplyHeader {
    // A request rejected for its key, or before the key is read, has no account.
    let applies_to =
        |status: &str, endpoint: Endpoint| endpoint.needs_key && !matches!(status, "401" | "403");
    ReplyHeader { name, description, example, kind, applies_to }
}

const HEADERS: &[ReplyHeader] = &[
    ReplyHeader {
        name: "x-request-id",
        description: "Names the request in the log and, where one was made, its row in the ledger.",
        example: super::EXAMPLE_REQUEST_ID,
        kind: Type::String,
        applies_to: |_, _| true,
    },
    account_header(
        "RateLimit-Policy",
        Type::String,
        r#""requests";q=60;w=60, "tokens";q=60000;qu="tokens";w=60"#,
        "The account's limits (`q`) and their window in seconds (`w`), as draft-ietf-httpapi-ratelimit-headers-10 writes them.",
    ),
    account_header(
        "RateLimit",
        Type::String,
        r#""requests";r=58;t=13, "tokens";r=58766;t=13"#,
        "What remains of each limit (`r`), and in how many seconds more comes free (`t`).",
    ),
    account_header(
        "x-ratelimit-limit-requests",
        Type::Integer,
        "60",
        "Requests per minute that the account may send.",
    ),
    account_header(
        "x-ratelimit-limit-tokens",
        Type::Integer,
        "60000",
        "Tokens per minute that the account may use.",
    ),
    account_header("x-ratelimit-remaining-requests", Type::Integer, "58", "Requests that remain."),
    account_header("x-ratelimit-remaining-tokens", Type::Integer, "58766", "Tokens that remain."),
    account_header(
        "x-ratelimit-reset-requests",
        Type::String,
        "59s",
        "Until all requests are free again, if nothing else comes.",
    ),
    account_header(
        "x-ratelimit-reset-tokens",
        Type::String,
        "1m0s",
        "Until all tokens are free again, if nothing else comes.",
    ),
    ReplyHeader {
        name: "Retry-After",
        description: "After how many whole seconds to try again.",
        example: "2",
        kind: Type::Integer,
        applies_to: |status, _| matches!(status, "409" | "429" | "503"),
    },
    ReplyHeader {
        name: "Idempotent-Replayed",
        description: "`true` where the reply was generated and billed before, for a request with the same `Idempotency-Key`.",
        example: "true",
        kind: Type::String,
        applies_to: |status, endpoint| status == "200" && endpoint.takes_idempotency_key,
    },
    ReplyHeader {
        name: "WWW-Authenticate",
        description: "How to prove who pays: `Bearer`.",
        example: "Bearer",
        kind: Type::String,
        applies_to: |status, _| status == "401",
    },
];

pub(super) fn describe(components: &mut Components) {
    for header in HEADERS {
        let schema = ObjectBuilder::new().schema_type(header.kind.clone());
        let described = HeaderBuilder::new()
            .schema(Some(schema))
            .description(Some(header.description))
            .example(Some(example(header)))
            .build();
        components.headers.insert(header.name.to_owned(), described.into());
    }
}

fn example(header: &ReplyHeader) -> serde_json::Value {
    match (&header.kind, header.example.parse::<u64>()) {
        (Type::Integer, Ok(number)) => number.into(),
        _ => header.example.into(),
    }
}

pub(super) fn attach(operation: &mut Operation) {
    let endpoint = Endpoint {
        needs_key: operation.security.as_ref().is_some_and(|required| !required.is_empty()),
        takes_idempotency_key: operation
            .parameters
            .iter()
            .flatten()
            .any(|parameter| matches!(parameter, RefOr::T(parameter) if parameter.name == KEY_NAME)),
    };
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        for header in HEADERS.iter().filter(|header| (header.applies_to)(status, endpoint)) {
            let reference = Ref::new(format!("#/components/headers/{}", header.name));
            response.headers.insert(header.name.to_owned(), RefOr::Ref(reference));
        }
    }
}
