//! `GET /openapi.json`: the API described for programs, in OpenAPI 3.1. The document is generated from the code:
//! endpoints and replies from the handlers (`utoipa`), bodies from the lists that parse them (`request`), and errors
//! from the error table. Every endpoint is documented, because `crate::routes` accepts only described handlers.

pub(crate) mod errors;
mod headers;
pub(crate) mod values;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use std::sync::LazyLock;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, InfoBuilder, LicenseBuilder, OpenApi, PathItem, RefOr, Schema, ServerBuilder,
};

pub(crate) const EXAMPLE_REQUEST_ID: &str = "req_01kxa6y0rc4t3c8v1m5q9e2f7z";
pub(crate) const PATH: &str = "/openapi.json";

const DESCRIPTION: &str = "Text in, generated text and its token count out. Work is metered in tokens, and the count is the basis of \
     billing: a complete reply leaves only after its usage is on disk.\n\nEvery request below `/v1` carries \
     `Authorization: Bearer KEY`. Call the API from your server: a request that comes from a browser is refused, because keys \
     do not belong in browsers. Unknown and doubled fields are refused, with the nearest known name. A path that is not here is \
     404 `not_found`, and a method that its path does not take is 405 `method_not_allowed`.";

#[utoipa::path(
    get,
    path = PATH,
    operation_id = "openapi",
    tag = "This description",
    summary = "The API, for programs",
    description = "This document: OpenAPI 3.1, in JSON. No key is needed, and a browser may open it.",
    responses((status = 200, description = "The document.", body = serde_json::Value), errors::OpenErrors)
)]
pub(crate) async fn handle() -> Response {
    static BYTES: LazyLock<String> = LazyLock::new(|| document().to_string());
    let media_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (media_type, BYTES.as_str()).into_response()
}

/// Builds the document, which is the same on every call.
pub fn document() -> serde_json::Value {
    let described = complete(crate::routes().into_openapi());
    // Strings and fixed shapes always serialize.
    serde_json::to_value(described).unwrap_or_default()
}

/// Implements `ToSchema` with a hand-written schema, under the type's own name.
macro_rules! described_as {
    ($($name:ident => $schema:expr),+ $(,)?) => {
        $(
            impl utoipa::ToSchema for $name {}

            impl utoipa::PartialSchema for $name {
                fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                    $crate::openapi::schema_of_value($schema)
                }
            }
        )+
    };
}
pub(crate) use described_as;

/// Passes a schema through unchanged. `utoipa` keeps keywords it does not know as extensions.
pub(crate) fn schema_of_value(schema: serde_json::Value) -> RefOr<Schema> {
    let serde_json::Value::Object(keywords) = schema else { return ObjectBuilder::new().into() };
    let any_type = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
    any_type.extensions(Some(Extensions::from_iter(keywords))).into()
}

/// Adds what no handler declares: the description of the whole API, and what all responses share.
fn complete(mut api: OpenApi) -> OpenApi {
    api.info = InfoBuilder::new()
        .title("Chancery: the text-generation API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    // Paths are relative to wherever the document is served.
    api.servers = Some(vec![ServerBuilder::new().url("/").description(Some("this server")).build()]);
    api.tags = Some(
        [
            ("Generation", "Generate text, or count and price it first."),
            ("For OpenAI's clients", "The same work under the paths that the official clients call; only base address and key change."),
            ("Account", "What can be used, and what was."),
            ("This description", "Open to everybody, browsers included."),
        ]
        .map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())
        .into(),
    );
    let components = api.components.get_or_insert_with(Components::new);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "An API key, made with `chancery key create`; sent as `Authorization: Bearer KEY`.",
    ));
    components.add_security_scheme("key", SecurityScheme::Http(bearer.build()));
    headers::describe(components);
    errors::describe(components);
    for item in api.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
        for operation in [get, put, post, delete, options, head, patch, trace].into_iter().flatten() {
            headers::attach(operation);
        }
    }
    api
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs_page;
    use std::collections::BTreeSet;

    #[test]
    fn checked_in_openapi_document_is_up_to_date() {
        let checked_in =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json"));
        // Compare as values: the order of names depends on cargo features enabled elsewhere in the build.
        let checked_in: Option<serde_json::Value> =
            checked_in.ok().and_then(|checked_in| serde_json::from_str(&checked_in).ok());
        assert!(
            checked_in.is_some_and(|checked_in| checked_in == document()),
            "docs/openapi.json is not what the code makes; run `make openapi`"
        );
    }

    fn references<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
        match value {
            serde_json::Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            serde_json::Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(|reference| reference.as_str()));
                fields.values().for_each(|field| references(field, found));
            }
            _ => {}
        }
    }

    #[test]
    fn every_ref_in_the_document_resolves() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_route_is_in_the_openapi_document() {
        let shown = format!("{:?}", crate::endpoints());
        let paths = shown.split('"').filter(|part| part.starts_with('/'));
        // Axum's own fallback routes, and what the page at `/docs` loads.
        let undescribed =
            ["/", "/{*__private__axum_fallback}", docs_page::STYLE_PATH, docs_page::SCRIPT_PATH];
        let routed: BTreeSet<&str> = paths.filter(|path| !undescribed.contains(path)).collect();
        let document = document();
        let described: BTreeSet<&str> =
            document["paths"].as_object().into_iter().flatten().map(|(path, _)| path.as_str()).collect();
        assert_eq!(routed, described);
    }
}
