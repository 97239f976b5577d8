//! The API's error table: every status and code, when it occurs, and which requests can receive it. The OpenAPI
//! document, the page at `/docs` and the schema of error bodies are generated from it. A test checks it against
//! `error.rs`.

use super::described_as;
use crate::error::ErrorBody;
use crate::openai;
use axum::http::StatusCode;
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, Type};
use utoipa::openapi::{Components, ContentBuilder, Ref, RefOr, Response, ResponseBuilder, Schema};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

/// A stage of request processing. An endpoint can return the errors of the stages that its requests pass through.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RequestStage {
    /// Finding the endpoint. Belongs to no endpoint.
    Routing,
    /// Rejecting browsers.
    KeysOnly,
    /// Any request that is served at all.
    Serving,
    /// Authenticating with an API key.
    Key,
    /// Parsing a JSON body.
    Body,
    /// Parsing a query string.
    Query,
    /// Looking up a model named in the path.
    Naming,
    /// Looking up a request named in the path.
    Receipt,
    /// Counting against the account's reads.
    Reading,
    /// Counting tokens.
    Counting,
    /// Admission and generation.
    Generating,
}

pub(crate) struct ErrorCode {
    pub status: u16,
    pub code: &'static str,
    pub when: &'static str,
    stages: &'static [RequestStage],
}

const fn error(
    status: u16,
    code: &'static str,
    stages: &'static [RequestStage],
    when: &'static str,
) -> ErrorCode {
    ErrorCode { status, code, when, stages }
}

pub(crate) const ERRORS: &[ErrorCode] = &[
    error(
        400,
        "malformed_request",
        &[RequestStage::Body, RequestStage::Query],
        "not JSON, not an object, a wrong type, an unknown or doubled field, bad UTF-8, nested too deep",
    ),
    error(
        400,
        "missing_field",
        &[RequestStage::Body],
        "a required field is absent or null; `field` names it",
    ),
    error(
        400,
        "invalid_value",
        &[RequestStage::Body, RequestStage::Query],
        "a value is out of range; both texts are empty; more tokens than the account or the key may use in a minute",
    ),
    error(
        400,
        "input_too_long",
        &[RequestStage::Counting],
        "template, texts and one token for the reply exceed the model's context",
    ),
    error(
        401,
        "invalid_api_key",
        &[RequestStage::Key],
        "no, malformed, unknown, expired or revoked key: one answer for all",
    ),
    error(
        402,
        "no_billing_account",
        &[RequestStage::Key],
        "the key bills no account, or its account is closed",
    ),
    error(
        402,
        "spending_cap_reached",
        &[RequestStage::Generating],
        "what the request may cost does not fit what the account or the key may still spend this month; the reason says when it \
         resets",
    ),
    error(
        403,
        "browser_request",
        &[RequestStage::KeysOnly],
        "a browser sent it (`Origin` or `Sec-Fetch-*` is there): keys do not belong in browsers",
    ),
    error(
        403,
        "model_not_allowed",
        &[RequestStage::Naming, RequestStage::Counting],
        "the key may not use this model; `GET /v1/models` lists what it may use",
    ),
    error(
        404,
        "unknown_model",
        &[RequestStage::Naming, RequestStage::Counting],
        "there is no model of this name; `GET /v1/models` lists them",
    ),
    error(
        404,
        "not_found",
        &[RequestStage::Routing, RequestStage::Receipt],
        "there is nothing at this path, or no such request of the account",
    ),
    error(
        404,
        "not_yet_logged",
        &[RequestStage::Receipt],
        "the request is billed, and no signed checkpoint covers it yet; `Retry-After` says when to ask again",
    ),
    error(
        405,
        "method_not_allowed",
        &[RequestStage::Routing],
        "the path does not take this method; `Allow` says what it takes",
    ),
    error(408, "malformed_request", &[RequestStage::Body], "the body did not arrive within 30 seconds"),
    error(
        409,
        "idempotency_in_flight",
        &[RequestStage::Generating],
        "a request with the same `Idempotency-Key` is still running; `Retry-After` says when to ask again",
    ),
    error(
        413,
        "request_too_large",
        &[RequestStage::Body],
        "the body is over the server's `api.max_body_bytes`",
    ),
    error(
        415,
        "unsupported_media_type",
        &[RequestStage::Body],
        "the body is not said to be UTF-8 JSON (`Content-Type: application/json`), or is compressed",
    ),
    error(
        422,
        "idempotency_mismatch",
        &[RequestStage::Generating],
        "the `Idempotency-Key` belongs to another request",
    ),
    error(
        429,
        "rate_limited",
        &[RequestStage::Reading, RequestStage::Generating],
        "past the requests, tokens or reads per minute of the account or the key; `Retry-After` says when it fits",
    ),
    error(
        500,
        "internal_error",
        &[RequestStage::Serving],
        "a defect of ours; the log has it under the request's id",
    ),
    error(
        502,
        "engine_failed",
        &[RequestStage::Counting, RequestStage::Generating],
        "the model failed on this request; nothing is billed",
    ),
    error(
        503,
        "overloaded",
        &[RequestStage::Body, RequestStage::Counting, RequestStage::Generating],
        "too much work is waiting already, or too many bytes of the account's requests; nothing is billed",
    ),
    error(
        503,
        "engine_restarting",
        &[RequestStage::Counting, RequestStage::Generating],
        "the model is being set up anew after a failure; nothing is billed", // lint-words: allow anew because the OpenAPI document is fixed
    ),
    error(503, "shutting_down", &[RequestStage::Serving], "the server is about to stop"),
    error(
        503,
        "unavailable",
        &[RequestStage::Key],
        "the database or the limits' store cannot be reached, so nothing can be admitted",
    ),
    error(
        504,
        "engine_timeout",
        &[RequestStage::Generating],
        "the reply was not ready in time; nothing is billed",
    ),
];

/// The `code` field of an error body.
pub(crate) struct AnyCode;

described_as!(AnyCode => json!({
    "type": "string",
    "enum": ERRORS.iter().map(|error| error.code).collect::<BTreeSet<_>>(),
    "description": "What went wrong, for programs; new codes may come.",
}));

/// The format of an error body.
#[derive(Clone, Copy)]
enum Shape {
    Own,
    /// The format that OpenAI's clients expect.
    OpenAi,
}

impl Shape {
    fn schema_name(self) -> Cow<'static, str> {
        match self {
            Self::Own => ErrorBody::name(),
            Self::OpenAi => openai::ErrorBody::name(),
        }
    }

    fn code(self, error: &ErrorCode) -> &'static str {
        match self {
            Self::Own => error.code,
            Self::OpenAi => openai::error_code_of(error.code),
        }
    }

    fn example(self, error: &ErrorCode) -> serde_json::Value {
        let ErrorCode { status, when, .. } = error;
        let code = self.code(error);
        match self {
            Self::Own => {
                json!({ "error": { "code": code, "reason": when, "request_id": super::EXAMPLE_REQUEST_ID } })
            }
            Self::OpenAi => {
                let status = StatusCode::from_u16(*status).unwrap_or_default();
                let kind = openai::error_type_of(status);
                json!({ "error": { "message": when, "type": kind, "param": null, "code": code } })
            }
        }
    }
}

macro_rules! error_responses {
    ($(#[$doc:meta])* $name:ident in $shape:ident: $($stage:ident),+) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                responses(Shape::$shape, &[$(RequestStage::$stage),+])
            }
        }
    };
}

error_responses!(
    /// Errors of endpoints that generate.
    GenerateErrors in Own: KeysOnly, Serving, Key, Body, Counting, Generating
);
error_responses!(
    /// Errors of endpoints that only count tokens.
    CountingErrors in Own: KeysOnly, Serving, Key, Body, Reading, Counting
);
error_responses!(
    /// Errors of generating endpoints, in OpenAI's format.
    OpenAiGenerateErrors in OpenAi: KeysOnly, Serving, Key, Body, Counting, Generating
);
error_responses!(
    /// Errors of token-counting endpoints, in OpenAI's format.
    OpenAiCountingErrors in OpenAi: KeysOnly, Serving, Key, Body, Reading, Counting
);
error_responses!(
    /// Errors of read-only endpoints that need a key.
    ReadErrors in Own: KeysOnly, Serving, Key, Reading
);
error_responses!(
    /// Like `ReadErrors`, with a model name in the path.
    NamedErrors in Own: KeysOnly, Serving, Key, Reading, Naming
);
error_responses!(
    /// Like `ReadErrors`, with a request's id in the path.
    ReceiptErrors in Own: KeysOnly, Serving, Key, Reading, Receipt
);
error_responses!(
    /// Like `ReadErrors`, with a query.
    QueryErrors in Own: KeysOnly, Serving, Key, Reading, Query
);
error_responses!(
    /// Errors of public endpoints.
    OpenErrors in Own: Serving
);

/// Adds the responses for requests that match no endpoint, and the schemas of error bodies.
pub(super) fn describe(components: &mut Components) {
    components.responses = responses(Shape::Own, &[RequestStage::Routing]);
    let mut schemas = vec![(ErrorBody::name().into_owned(), ErrorBody::schema())];
    ErrorBody::schemas(&mut schemas);
    schemas.push((openai::ErrorBody::name().into_owned(), openai::ErrorBody::schema()));
    openai::ErrorBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
}

/// Builds one response per status, with the codes possible in these stages.
fn responses(shape: Shape, stages: &[RequestStage]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&ErrorCode>> = BTreeMap::new();
    for error in ERRORS.iter().filter(|error| error.stages.iter().any(|stage| stages.contains(stage))) {
        by_status.entry(error.status).or_default().push(error);
    }
    by_status
        .into_iter()
        .map(|(status, errors)| (status.to_string(), response(shape, &errors).into()))
        .collect()
}

fn response(shape: Shape, errors: &[&ErrorCode]) -> Response {
    let description: Vec<String> =
        errors.iter().map(|error| format!("`{}`: {}.", shape.code(error), error.when)).collect();
    let code = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(errors.iter().map(|error| shape.code(error))));
    let these_codes =
        ObjectBuilder::new().property("error", ObjectBuilder::new().property("code", code.build()).build());
    let schema =
        AllOfBuilder::new().item(Ref::from_schema_name(shape.schema_name())).item(these_codes.build());
    let examples = errors.iter().map(|error| {
        let body = shape.example(error);
        // Keyed by our own code, so that the page can link to its error table.
        (error.code, ExampleBuilder::new().summary(error.when).value(Some(body)).build())
    });
    let content =
        ContentBuilder::new().schema(Some(Schema::AllOf(schema.build()))).examples_from_iter(examples);
    ResponseBuilder::new()
        .description(description.join("\n\n"))
        .content("application/json", content.build())
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds every `StatusCode::NAME, "code"` in `error.rs` and below, ignoring whitespace in between.
    fn codes_in_source() -> BTreeSet<(u16, String)> {
        let source = concat!(include_str!("../error.rs"), include_str!("../error/limits.rs"));
        let codes = source.split("StatusCode::").skip(1).filter_map(|rest| {
            let (name, after) = rest.split_once(',')?;
            let code = after.trim_start().strip_prefix('"')?.split('"').next()?;
            let status = match name {
                "BAD_REQUEST" => 400,
                "UNAUTHORIZED" => 401,
                "PAYMENT_REQUIRED" => 402,
                "FORBIDDEN" => 403,
                "NOT_FOUND" => 404,
                "METHOD_NOT_ALLOWED" => 405,
                "REQUEST_TIMEOUT" => 408,
                "CONFLICT" => 409,
                "PAYLOAD_TOO_LARGE" => 413,
                "UNSUPPORTED_MEDIA_TYPE" => 415,
                "UNPROCESSABLE_ENTITY" => 422,
                "TOO_MANY_REQUESTS" => 429,
                "INTERNAL_SERVER_ERROR" => 500,
                "BAD_GATEWAY" => 502,
                "SERVICE_UNAVAILABLE" => 503,
                "GATEWAY_TIMEOUT" => 504,
                other => panic!("teach this test the number of {other}"),
            };
            Some((status, code.to_owned()))
        });
        codes.collect()
    }

    #[test]
    fn error_table_lists_exactly_the_errors_in_the_code() {
        let table: BTreeSet<(u16, String)> =
            ERRORS.iter().map(|error| (error.status, error.code.to_owned())).collect();
        assert_eq!(table, codes_in_source());
        assert_eq!(table.len(), ERRORS.len(), "each stands once");
    }

    #[test]
    fn docs_api_md_lists_every_error() {
        let text = include_str!("../../../../docs/api.md");
        for ErrorCode { status, code, .. } in ERRORS {
            let row = text.lines().find(|line| {
                line.starts_with("| ")
                    && line.contains(&status.to_string())
                    && line.contains(&format!("`{code}`"))
            });
            assert!(row.is_some(), "docs/api.md has no row for {status} {code}");
        }
    }
}
